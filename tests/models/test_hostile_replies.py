"""Whatever a model server sends, a run ends with an answer, its limits hold, and every call is one call."""

import asyncio
import copy
import json
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentAnswer, AgentState, RunLimits
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import Model, ModelReply
from ferrule.models.anthropic import AnthropicModel
from ferrule.models.openai import OpenAIModel
from ferrule.models.retry import RetryingModel
from ferrule.testing import ScriptedModel
from tests.models.model_server import call, claude_event, completion, model_server
from tests.support.http_servers import Answer, json_answer
from tests.support.tiers import examples

needs_clients = pytest.mark.skipif(
    find_spec("openai") is None or find_spec("anthropic") is None,
    reason='needs the SDKs: pip install "ferrule[openai,anthropic]"',
)
pytestmark = [pytest.mark.integration, needs_clients]

DEPTH = 1_500
DEEP = '{"a":' * DEPTH + "1" + "}" * DEPTH
COMPLETION = {
    "id": "c1",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hm.",
                "reasoning": "So.",
                "refusal": None,
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
}
CHUNK = {
    **COMPLETION,
    "choices": [{"index": 0, "delta": COMPLETION["choices"][0]["message"], "finish_reason": "stop"}],  # type: ignore[index]
}
EVENTS = [
    {"type": "message_start", "message": {"id": "m1", "role": "assistant", "usage": {"input_tokens": 9}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " So."}},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "x", "name": "add", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "thinking_delta", "thinking": "So."}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10),
    st.sampled_from([math.nan, math.inf, -1, 10**400, 1e300, "12", "", "\ud800", "\0", [], {}, "stop", DEEP[:50]]),
    st.text(max_size=4),
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield from paths(inner, (*path, key))


def with_replacement(value: Any, path: Sequence[Any], junk: Any) -> Any:
    if not path:
        return junk
    changed = copy.copy(value)
    changed[path[0]] = with_replacement(value[path[0]], path[1:], junk)
    return changed


def spoiled(valid: Any) -> st.SearchStrategy[Any]:
    """A valid reply with one value, at any depth, replaced by any JSON value."""
    return st.builds(with_replacement, st.just(valid), st.sampled_from(list(paths(valid))), JSON)


def events_of(values: Sequence[Any]) -> Answer:
    sent = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    return Answer(events=[*sent, b"data: [DONE]\n\n"])


def claude_events(values: Sequence[Any]) -> Answer:
    def encode(value: Any) -> bytes:
        kind = value.get("type") if isinstance(value, dict) else None
        return f"event: {kind if isinstance(kind, str) and kind.isprintable() else 'message_start'}\n".encode() + (
            f"data: {json.dumps(value)}\n\n".encode()
        )

    return Answer(events=[encode(value) for value in values])


@tool(read_only=True)
async def add(a: int = 0, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


async def run_agent(model: Model, *, limits: RunLimits | None = None, stream: bool = False) -> AgentAnswer:
    async with UnifiedToolLibrary() as library:
        library.register(add)
        once = RetryingModel(model, attempts=1)  # or else it waits for seconds before it asks again
        agent = Agent(library, once, limits=limits or RunLimits(turns=3))
        return await agent.run("What is 1 + 2?", on_event=(lambda event: None) if stream else None)


async def ask_openai(*answers: Answer, limits: RunLimits | None = None, stream: bool = False) -> AgentAnswer:
    async with model_server(*answers) as server:
        model = OpenAIModel("m", base_url=f"{server.url}/v1", api_key="k")
        try:
            return await run_agent(model, limits=limits, stream=stream)
        finally:
            await model.aclose()


async def ask_claude(*answers: Answer, limits: RunLimits | None = None) -> AgentAnswer:
    async with model_server(*answers) as server:
        model = AnthropicModel("m", base_url=server.url, api_key="k")
        try:
            return await run_agent(model, limits=limits)
        finally:
            await model.aclose()


def assert_sound(answer: AgentAnswer) -> None:
    assert answer.state in (AgentState.FINISHED, AgentState.STOPPED)
    usage = answer.usage
    assert all(type(n) is int and n >= 0 for n in (usage.input_tokens, usage.output_tokens, usage.cached_tokens))
    ids = [call["id"] for message in answer.messages for call in message.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == len(answer.steps)
    json.dumps(answer.to_dict()).encode()


@examples(0.2)
@given(JSON | spoiled(COMPLETION))
def test_any_json_of_an_openai_server_gives_an_answer(reply):
    assert_sound(asyncio.run(ask_openai(json_answer(reply))))


@examples(0.2)
@given(st.lists(JSON, max_size=3) | spoiled([CHUNK, CHUNK]).filter(lambda value: isinstance(value, list)))
def test_any_stream_of_an_openai_server_gives_an_answer(values):
    assert_sound(asyncio.run(ask_openai(events_of(values), stream=True)))


@examples(0.2)
@given(st.lists(JSON, max_size=3) | spoiled(EVENTS).filter(lambda value: isinstance(value, list)))
def test_any_stream_of_an_anthropic_server_gives_an_answer(values):
    assert_sound(asyncio.run(ask_claude(claude_events(values))))


@examples(0.2)
@given(JSON)
def test_any_json_of_an_anthropic_server_gives_an_answer(reply):
    assert_sound(asyncio.run(ask_claude(json_answer(reply))))


@pytest.mark.parametrize("text", [DEEP, "[" * DEPTH])
async def test_arguments_nested_very_deep_are_an_error_of_that_call(text):
    answer = await ask_openai(completion(calls=[call("add", text)]), completion("Sorry."))
    assert answer.text == "Sorry." and [step.is_success for step in answer.steps] == [False]
    nested: Any = {}
    for _ in range(DEPTH):
        nested = {"a": nested}
    scripted = ScriptedModel([ModelReply(tool_calls=(ToolCall(name="add", arguments=nested),)), "Sorry."])
    answer = await run_agent(scripted)
    assert answer.text == "Sorry." and "nested" in answer.steps[0].text


async def test_arguments_nested_deep_in_objects_and_in_text_end_in_an_answer():
    message = {"role": "assistant", "content": DEEP, "tool_calls": [call("add", 0)]}
    whole = json_answer({"choices": [{"message": message, "finish_reason": "stop"}]})
    body = whole.body.replace(b'"arguments": 0', f'"arguments": {DEEP}'.encode())
    answer = await ask_openai(whole._replace(body=body))
    assert_sound(answer)
    assert_sound(await ask_openai(completion(f"<tool_call>{DEEP}</tool_call>")))
    assert_sound(await ask_openai(completion(DEEP)))


NONSENSE = [None, "many", {"prompt_tokens": "12", "completion_tokens": []}, {}, [7], {"prompt_tokens": -900}]


@pytest.mark.parametrize("usage", [*NONSENSE, {"prompt_tokens": math.nan, "completion_tokens": 10**400}])
async def test_missing_or_impossible_usage_is_estimated_so_that_limits_hold(usage):
    reply = completion(calls=[call("add", '{"a": 1}', id=None)], usage=usage)
    answer = await ask_openai(reply, limits=RunLimits(turns=None, tokens=400))
    assert answer.state is AgentState.STOPPED and "tokens (limit 400)" in answer.reason
    price = RunLimits(turns=None, cost=1.0, price=lambda used: used.total_tokens / 400)
    answer = await ask_openai(reply, limits=price)
    assert answer.state is AgentState.STOPPED and "it cost" in answer.reason


@pytest.mark.parametrize("count", ["12", -5, math.nan, None, 10**400])
async def test_impossible_usage_of_claude_and_of_any_model_is_estimated(count):
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": count}}}
    use = {"type": "tool_use", "id": "x", "name": "add", "input": {"a": 1}}
    block = {"type": "content_block_start", "index": 0, "content_block": use}
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": count}}
    events = Answer(events=[claude_event(event) for event in (start, block, end)])
    answer = await ask_claude(events, limits=RunLimits(turns=None, tokens=400))
    assert answer.state is AgentState.STOPPED and "tokens (limit 400)" in answer.reason
    reply = ModelReply(tool_calls=(ToolCall(name="add"),), usage=Usage(requests=1, input_tokens=count))
    answer = await run_agent(ScriptedModel([reply], loop=True), limits=RunLimits(turns=None, tokens=400))
    assert answer.state is AgentState.STOPPED and "tokens (limit 400)" in answer.reason


async def test_two_calls_with_one_id_are_two_calls():
    calls = [call("add", '{"a": 1}', id="same"), call("add", '{"a": 2}', id="same"), call("add", "", id="same")]
    answer = await ask_openai(completion(calls=calls), completion("Done."))
    assert [step.text for step in answer.steps] == ["1", "2", "0"] and len({step.id for step in answer.steps}) == 3
    parts = [{**part, "index": 0} for part in calls[:2]]
    whole = {"choices": [{"delta": {"tool_calls": parts}, "finish_reason": "tool_calls"}]}
    later = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in calls[:2]]
    for stream in ([whole], [*later, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]):
        text = {"choices": [{"delta": {"content": "Done."}, "finish_reason": "stop"}]}
        answer = await ask_openai(events_of(stream), events_of([text]), stream=True)
        assert [step.text for step in answer.steps] == ["1", "2"]
    uses = [{"type": "tool_use", "id": "same", "name": "add", "input": {"a": n}} for n in (1, 2)]
    starts = [{"type": "content_block_start", "index": 0, "content_block": use} for use in uses]
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}}
    done = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Done."}}
    answer = await ask_claude(claude_events([*starts, end]), claude_events([done, end]))
    assert [step.text for step in answer.steps] == ["1", "2"]
