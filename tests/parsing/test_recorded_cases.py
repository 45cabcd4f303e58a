"""Calls as the test suites of two other projects have them. Skipped where the shared data is not there.

Their tools are given, or made up from the expected calls. `core` cases must be read; in `edge` cases, over which even
those projects disagree, nothing may be made up.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.catalog.validation import ToolParameterValidator
from ferrule.core.messages import ToolCall
from ferrule.core.spec import ToolCapability
from ferrule.parsing import ToolCallReader, parse_model_text, parse_tool_calls
from tests.parsing.schemas import TEXT, schema

FILE = Path(__file__).parents[3] / "shared" / "data" / "toolcall_text_cases.jsonl"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="needs shared/data beside the project")
GUESSED = ("test_alias_get_details_by_phone", "test_alias_get_line_details", "test_alias_enable_roaming")
"""Here a tool of another name, and once an argument nobody wrote, would have to be guessed."""
CHECKED_LATER = (
    "do_not_satisfy_required",
    "ignored_when_required_present",
    "ignores_extra_arguments",
    "validate_schema",
)
"""Here arguments that nobody described are to be left out, and calls that are not complete: the validator does that."""


def tools_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    tools = list(case["tools"])
    names = {tool["function"]["name"] for tool in tools}
    for name in {call["name"]: None for call in case["expected_calls"]}:
        if name and name not in names and not case["id"].endswith(GUESSED):
            tools.append(schema(name) if case["source"] == "vllm" else schema(name, input=TEXT))
    return tools


def checked(calls: list[ToolCall], tools: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    results = []
    for call in calls:
        capability = ToolCapability(name=call.name, description="", parameters=parameters[call.name])
        result = ToolParameterValidator().validate(capability, call.arguments)
        results += [(call.name, result.validated_params)] if result.is_valid else []
    return results


def expected(case: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["name"], stripped(call["arguments"])) for call in case["expected_calls"]]


def stripped(arguments: Any) -> Any:
    """One case has the line break behind an action's input in it."""
    if not isinstance(arguments, dict) or set(arguments) != {"input"} or not isinstance(arguments["input"], str):
        return arguments
    return {"input": arguments["input"].strip()}


def cases(tier: str | None = None) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [case for case in read if tier is None or case["tier"] == tier]


def is_parsed(case: dict[str, Any]) -> bool:
    tools = tools_of(case)
    calls = parse_tool_calls(case["text"], tools)
    if case["id"].endswith(CHECKED_LATER):
        return checked(calls, tools) == expected(case)
    if case["id"].endswith(GUESSED):
        [call] = parse_model_text(case["text"], tools).calls
        return f"Did you mean {case['expected_calls'][0]['name']!r}" in (call.error or "")
    return [(call.name, stripped(call.arguments)) for call in calls] == expected(case)


def test_core_cases_are_parsed():
    assert [case["id"] for case in cases("core") if not is_parsed(case)] == []


def test_in_edge_cases_nothing_is_invented():
    for case in cases("edge"):
        for call in parse_tool_calls(case["text"], tools_of(case)):
            assert call.name in case["text"], case["id"]
            for name, value in call.arguments.items():
                text = value if isinstance(value, str) else json.dumps(value)
                assert name in case["text"] and (text in case["text"] or value in (None, 3)), case["id"]


@pytest.mark.parametrize("size", [1, 7])
def test_streamed_cases_are_parsed_like_whole_texts(size):
    for case in cases():
        tools, text = tools_of(case), case["text"]
        reader = ToolCallReader(tools)
        visible = "".join(reader.feed(text[at : at + size]) for at in range(0, len(text), size))
        parsed = reader.close()
        assert parsed == parse_model_text(text, tools)
        assert parsed.text.startswith(visible)


def test_the_prose_of_the_cases_is_kept():
    for case in cases():
        parsed = parse_model_text(case["text"], tools_of(case))
        prose = case.get("expected_text") or ""
        if case["source"] == "vllm" and parsed.calls and "<" not in prose:
            assert "".join(parsed.text.split()).startswith("".join(prose.split()))
