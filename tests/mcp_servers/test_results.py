"""Results of servers as our output."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult
from mcp.types import Tool as ListedTool

from ferrule.content import Image, Output, Text
from ferrule.errors import ExecutionFailed
from ferrule.executors.mcp.listing import capability_of
from ferrule.executors.mcp.results import output_of

REAL_TOOLS = Path(__file__).parents[3] / "shared" / "data" / "mcp_tools.jsonl"


def result(content: list[dict[str, Any]], **more: Any) -> CallToolResult:
    return CallToolResult.model_validate({"content": content, **more})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_text_is_the_result():
    assert output_of(result([text("one"), text("two")])) == Output(data={"result": "one\ntwo"})
    assert output_of(result([])) == Output(data={"result": ""})


def test_structured_content_is_the_data_and_text_that_repeats_it_is_left_out():
    assert output_of(result([text('{"a": 1}')], structuredContent={"a": 1})) == Output(data={"a": 1})
    assert output_of(result([text("3")], structuredContent={"result": 3})) == Output(data={"result": 3})
    listed = result([text("a"), text("b")], structuredContent={"result": ["a", "b"]})
    assert output_of(listed) == Output(data={"result": ["a", "b"]})
    assert output_of(result([], structuredContent=[1, 2])) == Output(data={"result": [1, 2]})


def test_other_text_and_images_beside_structured_content_come_along():
    image = {"type": "image", "data": "cG5n", "mimeType": "image/png"}
    output = output_of(result([text("look"), image], structuredContent={"a": 1}))
    assert output == Output(data={"a": 1}, parts=(Text(text="look"), Image(data=b"png", mime_type="image/png")))


def test_a_result_that_is_an_error_fails_with_its_text():
    with pytest.raises(ExecutionFailed, match="no such file"):
        output_of(result([text("no such file")], isError=True))
    with pytest.raises(ExecutionFailed, match="says only that the call failed"):
        output_of(result([], isError=True))


def test_a_blob_is_read_and_a_broken_one_is_an_error():
    blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "Ynl0ZXM="}}
    assert output_of(result([blob])).parts[0].data == b"bytes"  # type: ignore[union-attr]
    with pytest.raises(ExecutionFailed, match="not base64"):
        output_of(result([{"type": "image", "data": "x", "mimeType": "image/png"}]))


@pytest.mark.skipif(not REAL_TOOLS.exists(), reason="needs shared/data beside the project")
def test_the_tools_of_real_servers_become_actions():
    for line in REAL_TOOLS.read_text().splitlines():
        listed = ListedTool.model_validate(json.loads(line))
        capability = capability_of(listed)
        assert capability.schema.get("type") == "object"
        assert set(listed.input_schema.get("properties", {})) == set(capability.schema.get("properties", {}))
