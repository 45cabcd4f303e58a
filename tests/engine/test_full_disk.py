"""Calls while the disk is full: which are refused because their records could be lost is configurable."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import SetupError, ToolEngineConfig
from tests.support.processes import ROOT, run_python

CALLS_ON_A_FULL_DISK = """
import asyncio, json, resource, signal, sys
from ferrule import ToolEngine, ToolEngineConfig, tool
from ferrule.store import ToolKnowledgeStore

made = []

@tool(destructive=True)
async def delete() -> str:
    made.append("delete")
    return "deleted"

@tool
async def note() -> str:
    made.append("note")
    return "noted"

async def main(path, on_store_failure):
    config = ToolEngineConfig(builtin_tools=False, auto_reload=False, on_store_failure=on_store_failure)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with ToolEngine(config, store=ToolKnowledgeStore(path)) as engine:
        engine.register(delete, note)
        await engine.store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))  # no file may grow: the disk is full
        results = [await engine.execute(name) for name in ("delete", "note", "delete")]
        during = list(made)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        while not (last := await engine.execute("delete")).is_success:
            await asyncio.sleep(0.05)  # the store tries again from time to time
        print(json.dumps({
            "made": during,
            "errors": [[result.error_type, result.error] for result in results],
            "after": last.is_success,
        }))

asyncio.run(main(*sys.argv[1:]))
"""


def call_on_a_full_disk(path: Path, on_store_failure: str) -> Any:
    done = run_python("-c", CALLS_ON_A_FULL_DISK, str(path), on_store_failure, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("on_store_failure", "made", "error_types"),
    [
        ("refuse_destructive", ["note"], ["rejected", None, "rejected"]),
        ("refuse", [], ["rejected", "rejected", "rejected"]),
        ("continue", ["delete", "note", "delete"], [None, None, None]),
    ],
)
def test_calls_whose_records_could_be_lost_are_refused_as_configured(tmp_path, on_store_failure, made, error_types):
    result = call_on_a_full_disk(tmp_path / "calls.db", on_store_failure)
    assert (result["made"], [error_type for error_type, _ in result["errors"]]) == (made, error_types)
    assert result["after"] is True  # as soon as there is space again
    for _, message in filter(lambda error: error[0], result["errors"]):
        assert "was not called, because its record cannot be stored safely: " in message
        assert "File too large" in message and "Free disk space" in message and "on_store_failure" in message


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(SetupError, match="on_store_failure must be one of refuse, refuse_destructive, continue"):
        ToolEngineConfig(on_store_failure="ignore")  # type: ignore[arg-type]
