"""The API does what its OpenAPI document says, whatever requests Schemathesis makes of it."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.server.serving import Project

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not find_spec("schemathesis"), reason="pip install schemathesis"),
]

CONFIG = """
# What a schema cannot say: that an API's document is one of OpenAPI (422), and that a name is taken (409).
[[operations]]
include-name = "POST /v1/tools"
checks.positive_data_acceptance.expected-statuses = ["2xx", "409", "422"]

# Which arguments a tool takes (422), and that a person must approve a call (428).
[[operations]]
include-name = "POST /v1/tools/{name}/call"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "422", "428", "429"]

# That a run waits for an answer (400).
[[operations]]
include-name = "POST /v1/runs/{run_id}/resume"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409"]
"""


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing(tmp_path: Path):
    project = Project(tmp_path)
    token = project.create_token("tester", "--role", "admin")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with project.serve() as server:
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(tmp_path / "schemathesis.toml"),
            "run",
        ]
        command += [f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {token}", "--no-color"]
        # A stream of events has no end, so there is no response to check; test_http_api reads it.
        command += ["--exclude-path", "/v1/events"]
        # These would end the token that is used here; test_administration calls them.
        command += ["--exclude-path", "/v1/tokens/{name}/rotate", "--exclude-name", "DELETE /v1/tokens/{name}"]
        command += ["--phases", "coverage,fuzzing", "--max-examples", "2"]
        command += ["--seed", "1", "--request-timeout", "60"]
        report = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=500)
        assert server.process.poll() is None
    assert report.returncode == 0, report.stdout[-8_000:] + report.stderr
