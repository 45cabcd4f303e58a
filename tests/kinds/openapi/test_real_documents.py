"""Documents of real APIs: every operation is an action whose parameters can be checked."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ferrule.core.spec import Tool
from ferrule.errors import LoadError
from ferrule.kinds.openapi.tool import read_openapi
from tests.support.shared_data import shared_data

FOLDER = shared_data("openapi")


def entries() -> list[dict[str, Any]]:
    index = FOLDER / "index.jsonl"
    return [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []


def read(path: Path) -> Tool:
    try:
        return read_openapi(path)
    except LoadError as error:
        assert "has no host" in str(error)
        return read_openapi(path, server="https://api.example")


@pytest.mark.skipif(not entries(), reason="needs shared/data beside the project")
def test_every_operation_of_a_real_document_is_an_action():
    for entry in entries():
        tool = read(FOLDER / entry["file"])
        operations = tool.target.operations
        found = sorted((o.method.lower(), o.path, o.body is not None) for o in operations.values())
        expected = [(o["method"], o["path"].partition("#")[0], o["has_body"]) for o in entry["operations"]]
        assert found == sorted(expected), entry["file"]
        assert [c.name for c in tool.spec.capabilities] == list(operations), entry["file"]
        for capability in tool.spec.capabilities:
            jsonschema_rs.validator_for(capability.schema, offline=True)
            named = {a.argument for a in operations[capability.name].arguments}
            assert named <= set(capability.schema["properties"]), (entry["file"], capability.name)
