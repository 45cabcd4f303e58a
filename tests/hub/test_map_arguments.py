"""One set of arguments for candidates that call the same thing by other names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Tool, ToolCapability, ToolParameterValidator, ToolSpec
from ferrule.errors import InvalidArguments
from ferrule.hub import ToolHub
from ferrule.hub.candidates import map_arguments
from tests.hub.recording_tools import BEST, CallRecorder, engine_with, make_tool

TEXT = {"type": "string"}


def action(**parameters: Any) -> ToolCapability:
    return ToolCapability(name="find", description="Find.", parameters=parameters)


def map_to(capability: ToolCapability, params: Any, *, strict: bool) -> Any:
    return map_arguments(capability, params, ToolParameterValidator(strict=strict).get_check(capability).check)


REQUIRED = {**TEXT, "required": True}


@pytest.mark.parametrize(
    ("parameters", "params", "fitted"),
    [
        ({"query": REQUIRED}, {"query": "tea"}, {"query": "tea"}),
        ({"query": REQUIRED}, {"query": "tea", "limit": 5}, {"query": "tea"}),
        ({"q": REQUIRED}, {"query": "tea"}, {"q": "tea"}),
        ({"q": REQUIRED, "limit": {"type": "integer"}}, {"query": "tea", "limit": 5}, {"q": "tea", "limit": 5}),
        ({"q": REQUIRED, "n": {"type": "integer"}}, {"query": "tea", "limit": 5}, {"q": "tea"}),
        ({"q": {"anyOf": [TEXT, {"type": "null"}], "required": True}}, {"query": "tea"}, {"q": "tea"}),
        ({"zone": TEXT}, {"query": "what time is it?"}, {}),
        ({}, {"query": "what time is it?"}, {}),
    ],
)
def test_arguments_are_fitted(parameters: dict[str, Any], params: dict[str, Any], fitted: dict[str, Any]):
    assert map_to(action(**parameters), params, strict=True) == fitted


@pytest.mark.parametrize(
    ("parameters", "params"),
    [
        ({"q": REQUIRED, "lang": REQUIRED}, {"query": "tea"}),
        ({"q": REQUIRED}, {"query": "tea", "language": "en"}),
        ({"q": REQUIRED}, {"number": 5}),
        ({"n": {"type": "integer", "required": True}}, {"query": "tea"}),
        ({"kind": {"enum": ["a", "b"], **REQUIRED}}, {"query": "tea"}),
        ({"q": REQUIRED, "lang": TEXT}, {"lang": "en", "limit": 5}),
        ({"key": {**REQUIRED, "writeOnly": True}}, {"query": "tea"}),
        ({"q": REQUIRED}, ["tea"]),
    ],
)
def test_arguments_that_could_mean_several_things_are_not_fitted(parameters: dict[str, Any], params: Any):
    with pytest.raises(InvalidArguments, match="The arguments do not match the parameters of "):
        map_to(action(**parameters), params, strict=False)


def test_a_schema_that_takes_anything_gets_everything():
    open_schema = {"type": "object", "properties": {"query": TEXT}, "additionalProperties": True}
    capability = ToolCapability(name="find", description="Find.", parameters=open_schema)
    assert map_to(capability, {"query": "tea", "x": 1}, strict=False) == {"query": "tea", "x": 1}


@pytest.mark.parametrize(("given_name", "strict"), [("query", True), ("q", True), ("query", False), ("q", False)])
def test_a_schema_that_forbids_other_parameters_does_not_get_them(given_name: str, strict: bool):
    closed = {"type": "object", "properties": {"q": TEXT}, "required": ["q"], "additionalProperties": False}
    capability = ToolCapability(name="find", description="Find.", parameters=closed)
    assert map_to(capability, {given_name: "tea", "limit": 5}, strict=strict) == {"q": "tea"}


@given(st.dictionaries(st.sampled_from(["q", "query", "limit", "lang"]), st.one_of(st.integers(), st.text())))
def test_fitted_arguments_are_always_valid_and_made_of_what_was_given(params: dict[str, Any]):
    capability = action(q=REQUIRED, limit={"type": "integer"})
    try:
        fitted = map_to(capability, params, strict=True)
    except InvalidArguments:
        return
    assert set(fitted) <= {"q", "limit"} and isinstance(fitted["q"], str)
    assert set(fitted.values()) <= set(params.values())


async def test_each_candidate_gets_the_arguments_in_its_own_words():
    async def by_word(word: str) -> str:
        """Find."""
        return f"word={word}"

    async def by_query(query: str, limit: int = 10) -> str:
        """Find."""
        return f"query={query}, limit={limit}"

    tools = [make_tool(f, read_only=True, tags=["search"]) for f in (by_word, by_query)]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine).execute_by_capability("search", {"query": "tea", "limit": 3})
    assert "word=tea" in result.text and "query=tea, limit=3" in result.text


async def test_a_candidate_the_arguments_cannot_be_fitted_to_is_skipped_with_the_reason():
    async def between(start: str, end: str) -> str:
        """Find a way."""
        return "a way"

    recorder = CallRecorder()
    async with engine_with(make_tool(between, read_only=True, **BEST), recorder.search("find", "it", **BEST)) as engine:
        result = await ToolHub(engine).execute_by_capability("search", {"query": "tea"})
    assert result.text == "it"
    [skipped] = result.metadata["skipped"]
    assert skipped["candidate"] == "between (tools)" and "start" in skipped["reason"]


async def test_when_the_arguments_fit_nobody_the_failure_says_why():
    async def between(start: str, end: str) -> str:
        """Find a way."""
        return "a way"

    tools = [make_tool(between, source=source) for source in ("tools", "mcps")]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine).execute("between", {"query": "tea"})
        [record] = await engine.query_call_records()
    assert (record.record_id, record.error, record.error_type) == (result.call_id, result.error, result.error_type)
    assert (result.error_type, len(result.metadata["skipped"])) == ("validation_error", 2)
    assert result.text.count("was skipped: The arguments do not match the parameters of") == 2


async def test_a_single_candidate_is_called_even_so_and_the_engine_says_what_is_wrong():
    async def between(start: str, end: str) -> str:
        """Find a way."""
        return "a way"

    async with engine_with(make_tool(between)) as engine:
        result = await ToolHub(engine).execute("between", {"start": "a", "finish": "b"})
        listed = await ToolHub(engine).execute("between", ["a", "b"])  # type: ignore[arg-type]
    assert result.error_type == "validation_error"
    assert sorted(error["path"] for error in result.validation_errors) == ["end", "finish"]
    assert listed.error_type == "validation_error"


async def test_a_candidate_whose_schema_is_broken_is_skipped():
    spec = ToolSpec(tool_id="find", capabilities=[action(query={"type": "no such type"})])
    broken = Tool(spec=spec, handler="echo")
    async with engine_with(broken, CallRecorder().search("find", "it", source="mcps")) as engine:
        result = await ToolHub(engine).execute("find", {"query": "tea"})
    assert result.text == "it"
    assert "not a valid JSON Schema" in result.metadata["skipped"][0]["reason"]
