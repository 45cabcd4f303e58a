"""Real tools by the thousand: nothing breaks, and every call follows its schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.messages import Schema, user_message
from ferrule.core.model import ModelRequest
from ferrule.core.names import encode_model_name
from ferrule.models.offline import OfflineModel
from ferrule.models.offline.tool_choice import choose_tool
from ferrule.models.offline.tools import OfferedTools, OfferedToolsCache
from tests.models.offline_tools import TOOLS
from tests.support.shared_data import shared_data

WORDS = [
    *("weather in", "Paris", "and", "3 + 4", "tomorrow at 9am", "https://a.example/x", "bob@example.com"),
    *(
        "'quoted text'",
        "“引号”",
        "/tmp/a.txt",
        "15% of",
        "100 USD",
        "to EUR",
        "it",
        "then",
        ";",
        "，",
        "然后",
        "把结果",
    ),
    *("翻倍", "delete the file", "search for", "北京", "天气", "几点", "translate", "in French", "A-12"),
]


def real_tools() -> list[Schema]:
    rows = [
        json.loads(line) for name in ("function_docs", "mcp_tools") for line in _lines(shared_data(f"{name}.jsonl"))
    ]
    return [_schema(row) for row in rows if row.get("normalised_is_valid", True)]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _schema(row: dict[str, Any]) -> Schema:
    function = {
        "name": encode_model_name(row["name"]),
        "description": row.get("description") or "",
        "parameters": row.get("parameters_normalised") or row.get("inputSchema") or {},
    }
    return {"type": "function", "function": function}


needs_data = pytest.mark.skipif(not shared_data("function_docs.jsonl").exists(), reason="the shared data is not here")


@needs_data
@pytest.mark.parametrize("step", [25, pytest.param(1, marks=pytest.mark.long)])
def test_every_real_tool_can_be_asked_for_and_is_called_by_its_schema(step):
    calls = 0
    for tool in real_tools()[::step]:
        function = tool["function"]
        question = f"{function['description'][:200]} with 3 and 'x' for Paris tomorrow, 5 times"
        choice = choose_tool(OfferedTools([tool]), question)
        if choice is not None and choice.is_ready:
            calls += len(choice.filled.calls)
            validator = jsonschema_rs.validator_for(function["parameters"])
            assert all(map(validator.is_valid, choice.filled.calls)), (function["name"], choice.filled.calls)
    assert calls > 300 / step


@needs_data
async def test_among_thousands_of_tools_the_right_one_is_called():
    tools = [*real_tools(), *TOOLS]
    model = OfflineModel()
    request = ModelRequest(messages=[user_message("Read the contents of the text file notes.txt")], tools=tools)
    [call] = (await model.generate(request)).tool_calls
    assert "notes.txt" in call.arguments.values()


def test_a_list_of_tools_is_read_once():
    cache = OfferedToolsCache()
    first = cache.get(TOOLS)
    copied = json.loads(json.dumps(TOOLS))
    assert cache.get(TOOLS) is first
    assert cache.get(copied) is first
    assert cache.get(TOOLS[:3]) is not first


@given(question=st.text(max_size=60))
def test_any_text_makes_valid_calls_or_none(question):
    choice = choose_tool(_OFFERED, question)
    assert choice is None or not choice.is_ready or all(map(choice.tool.accepts, choice.filled.calls))


@given(words=st.lists(st.sampled_from(WORDS), max_size=14))
def test_no_mixture_of_words_makes_a_call_that_breaks_its_schema(words):
    choice = choose_tool(_OFFERED, " ".join(words))
    if choice is not None and choice.is_ready:
        assert all(jsonschema_rs.is_valid(choice.tool.schema, arguments) for arguments in choice.filled.calls)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "function"},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "objekt"}}},
        {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": True}}}},
        {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"a": {"enum": []}}}}},
        {"type": "function", "function": {"name": "weather", "parameters": {"$ref": "https://elsewhere.example"}}},
        {"type": "function", "function": {"name": "weather", "parameters": {"required": ["city"], "properties": None}}},
    ],
)
async def test_invalid_schemas_do_not_break_it(schema):
    tools = [schema, schema, *TOOLS[:1]]
    model = OfflineModel()
    reply = await model.generate(ModelRequest(messages=[user_message("weather in Paris and 1 + 1")], tools=tools))
    assert reply.text or reply.tool_calls


_OFFERED = OfferedTools(TOOLS)
