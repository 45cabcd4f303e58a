"""A history within what a model can read."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ferrule import tool
from ferrule.agent import Agent, RunLimits
from ferrule.agent.formats import HistoryCompaction, compact_messages, estimate_message_tokens
from ferrule.core.messages import ToolCall, assistant_message, system_message, tool_message, user_message
from ferrule.core.model import ModelRequest
from ferrule.errors import RequestTooLong
from ferrule.testing import ScriptedModel


def turn(number: int, length: int, calls: int = 1) -> list[dict[str, object]]:
    asked = [ToolCall(name="read", arguments={"n": n}, id=f"c{number}_{n}") for n in range(calls)]
    return [assistant_message("", asked), *(tool_message(call, "x" * length) for call in asked)]


def test_old_results_are_cut_first_and_the_last_turns_stay_whole():
    messages = [system_message("be good"), user_message("read"), *(m for n in range(8) for m in turn(n, 4000))]
    shown = compact_messages(messages, 5500, "read")
    assert len(shown) == len(messages) and sum(map(estimate_message_tokens, shown)) <= 5500
    assert "characters left out" in str(shown[3]["content"]) and shown[-1] == messages[-1]
    assert [len(str(m["content"])) for m in shown[-8:] if m["role"] == "tool"] == [4000] * 4


def test_then_whole_turns_go_with_their_answers():
    messages = [system_message("be good"), user_message("read"), *(m for n in range(20) for m in turn(n, 4000, 2))]
    shown = compact_messages(messages, 3000, "read")
    assert shown[:2] == messages[:2] and "earlier turns" in str(shown[2]["content"])
    assert shown[-3:] == messages[-3:] and sum(map(estimate_message_tokens, shown)) <= 3000


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3)), max_size=12), st.integers(50, 4000))
def test_calls_and_answers_stay_together(turns, budget):
    messages = [system_message("s"), user_message("task")]
    for number, (length, calls) in enumerate(turns):
        messages += turn(number, length, calls)
    view = HistoryCompaction(budget)
    for end in range(2, len(messages) + 1):
        shown = view.visible_messages(messages[:end], "task")
        asked = [c["id"] for m in shown for c in m.get("tool_calls") or ()]
        answered = [m["tool_call_id"] for m in shown if m["role"] == "tool"]
        assert answered == asked[: len(answered)] and shown[0] == messages[0] and messages[1] in shown


async def test_a_long_run_is_shown_within_the_window_and_kept_whole():
    @tool(read_only=True)
    async def read(n: int) -> str:
        """Read a page."""
        return f"page {n} " + "words " * 500

    script = [{"name": "read", "arguments": {"n": n}} for n in range(30)]
    model = ScriptedModel([*script, "done"])
    answer = await Agent([read], model, window_tokens=8000, limits=RunLimits(turns=None)).run("Read all")
    sizes = [sum(map(estimate_message_tokens, request.messages)) for request in model.requests]
    assert max(sizes) <= 8000 and answer.text == "done"
    assert sum(map(estimate_message_tokens, answer.messages)) > 20_000


async def test_a_model_that_can_read_less_than_was_thought_is_shown_less():
    @tool(read_only=True)
    async def read(n: int) -> str:
        """Read a page."""
        return f"page {n} " + "words " * 500

    def answer(request: ModelRequest) -> Any:
        size = sum(map(estimate_message_tokens, request.messages))
        if size > 6000:
            raise RequestTooLong(f"{size} tokens are too many")
        return "done" if sum(m["role"] == "tool" for m in request.messages) >= 12 else call

    call: Any = [{"name": "read", "arguments": {"n": n}} for n in range(4)]
    answer_ = await Agent([read], ScriptedModel([answer], loop=True), limits=RunLimits(turns=6)).run("Read all")
    assert len(answer_.steps) >= 20 and "too many" not in answer_.reason
