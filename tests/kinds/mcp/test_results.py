"""Results of servers as our output."""

import json
from typing import Any

import pytest
from mcp.types import CallToolResult

from ferrule.core.content import Image, Output, Text
from ferrule.errors import ExecutionFailed
from ferrule.kinds.mcp.listing import read_entry
from ferrule.kinds.mcp.results import convert_result
from tests.support.shared_data import shared_data

REAL_TOOLS = shared_data("mcp_tools.jsonl")


def result(content: list[dict[str, Any]], **more: Any) -> CallToolResult:
    return CallToolResult.model_validate({"content": content, **more})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_text_is_the_result():
    assert convert_result(result([text("one"), text("two")])) == Output(data={"result": "one\ntwo"})
    assert convert_result(result([])) == Output(data={"result": ""})


def test_structured_content_is_the_data_and_text_that_repeats_it_is_left_out():
    assert convert_result(result([text('{"a": 1}')], structuredContent={"a": 1})) == Output(data={"a": 1})
    assert convert_result(result([text("3")], structuredContent={"result": 3})) == Output(data={"result": 3})
    listed = result([text("a"), text("b")], structuredContent={"result": ["a", "b"]})
    assert convert_result(listed) == Output(data={"result": ["a", "b"]})
    assert convert_result(result([], structuredContent=[1, 2])) == Output(data={"result": [1, 2]})


def test_other_text_and_images_beside_structured_content_come_along():
    image = {"type": "image", "data": "cG5n", "mimeType": "image/png"}
    output = convert_result(result([text("look"), image], structuredContent={"a": 1}))
    assert output == Output(data={"a": 1}, parts=(Text(text="look"), Image(data=b"png", mime_type="image/png")))


def test_a_result_that_is_an_error_fails_with_its_text():
    with pytest.raises(ExecutionFailed, match="no such file"):
        convert_result(result([text("no such file")], isError=True))
    with pytest.raises(ExecutionFailed, match="a failure without a message"):
        convert_result(result([], isError=True))


def test_a_blob_is_read_and_a_broken_one_is_an_error():
    blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "Ynl0ZXM="}}
    assert convert_result(result([blob])).parts[0].data == b"bytes"  # type: ignore[union-attr]
    with pytest.raises(ExecutionFailed, match="not valid base64"):
        convert_result(result([{"type": "image", "data": "x", "mimeType": "image/png"}]))


@pytest.mark.skipif(not REAL_TOOLS.exists(), reason="needs shared/data beside the project")
def test_the_tools_of_real_servers_become_actions():
    for line in REAL_TOOLS.read_text().splitlines():
        listed = json.loads(line)
        capability, problem = read_entry(listed, 1)
        assert not problem
        assert capability.schema.get("type") == "object"
        assert set(listed["inputSchema"].get("properties", {})) == set(capability.schema.get("properties", {}))
