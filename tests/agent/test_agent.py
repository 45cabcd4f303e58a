"""The tool-call loop."""

import asyncio
from types import SimpleNamespace
from typing import Annotated

import pytest

from ferrule import SetupError, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState, RunLimits
from ferrule.agent.answer import CallEnded, CallStarted, RunEnded, TextPiece, TurnStarted
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply
from ferrule.errors import ModelRefused
from ferrule.policy.policy import Policy, Rule
from ferrule.testing import ScriptedModel
from tests.agent.calls import call
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail(reason: str) -> str:
    """Fail."""
    raise RuntimeError(reason)


async def test_a_call_and_then_an_answer():
    answer = await Agent([add], ScriptedModel([call("add", a=1, b=2), "It is 3."])).run("What is 1 + 2?")
    assert answer.text == "It is 3." and answer.is_finished and answer.usage.requests == 2
    (step,) = answer.steps
    assert (step.tool_id, step.arguments, step.text, step.is_success) == ("add", {"a": 1, "b": 2}, "3", True)
    assert [m["role"] for m in answer.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert answer.messages[3] == {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"}
    assert answer.summary["total_calls"] == 1


async def test_every_call_is_answered_once_and_in_order_whatever_fails():
    calls = [call("fail", reason="first"), call("add", a=1, b=1), call("nothing"), call("add", a="x", b=1)]
    answer = await Agent([add, fail], ScriptedModel([calls, "done"])).run("Go")
    asked = [c["id"] for c in answer.messages[2]["tool_calls"]]
    told = answer.messages[3:7]
    assert [m["tool_call_id"] for m in told] == asked and len(set(asked)) == 4
    assert "first" in told[0]["content"] and told[1]["content"] == "2"
    assert "There is no tool 'nothing'" in told[2]["content"] and "a: " in told[3]["content"]


async def test_arguments_that_cannot_be_read_are_told_to_the_model():
    broken = ModelReply(tool_calls=(ToolCall(name="add", id="c1", error="The arguments cannot be read.", raw="{a:"),))
    answer = await Agent([add], ScriptedModel([broken, "sorry"])).run("Go")
    assert answer.messages[3]["content"] == "The arguments cannot be read."
    assert answer.messages[2]["tool_calls"][0]["function"]["arguments"] == "{a:"


async def test_calls_that_only_look_run_at_once_and_those_that_change_in_order():
    running, most, order = 0, 0, []

    @tool(read_only=True)
    async def look(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most == 2)
        running -= 1
        return n

    @tool
    async def write(n: int) -> int:
        await asyncio.sleep(0.01 / n)  # the later ones would end first if they ran at once
        order.append(n)
        return n

    calls = [call("write", n=1), call("look", n=1), call("write", n=2), call("look", n=2), call("write", n=3)]
    answer = await Agent([look, write], ScriptedModel([calls, "done"])).run("Go")
    assert order == [1, 2, 3] and most == 2
    assert [m["content"] for m in answer.messages[3:8]] == ["1", "1", "2", "2", "3"]


async def test_the_same_failing_call_twice_in_one_turn_is_made_once():
    made = []

    @tool(read_only=True)
    async def look(n: int) -> int:
        made.append(n)
        raise RuntimeError("broken")

    answer = await Agent([look], ScriptedModel([[call("look", n=1)] * 3, "done"])).run("Go")
    assert made == [1]
    assert [s.error_type for s in answer.steps] == ["execution_error", "known_failure", "known_failure"]


async def test_without_a_message_the_text_beside_finish_task_is_the_answer_and_without_both_there_is_none():
    finish = ToolCall(id="1", name="finish_task", arguments={"message": " "})
    async with UnifiedToolLibrary() as library:
        beside = ScriptedModel([ModelReply(text="It is 2.", tool_calls=(finish,))])
        assert (await Agent(library, beside).run("1 + 1?")).text == "It is 2."
        again = ScriptedModel([[finish], "It is 2."])
        answer = await Agent(library, again).run("1 + 1?")
        assert answer.text == "It is 2." and answer.messages[-2]["content"].startswith("[note] That is not an answer.")
        insists = await Agent(library, ScriptedModel([[finish]] * 20)).run("1 + 1?")
        assert not insists.is_finished and len(insists.steps) <= 10


async def test_a_model_that_insists_is_stopped_with_an_account():
    made = []

    @tool
    async def scrape(selector: str) -> str:
        """Read a page."""
        made.append(selector)
        raise ValueError(f"Selector {selector!r} not found")

    model = ScriptedModel([call("scrape", selector="a.social-count")], loop=True)
    answer = await Agent([scrape], model, limits=RunLimits(turns=15)).run("How many stars?")
    assert made == ["a.social-count"] and len(answer.steps) == len(model.requests) == 4
    assert answer.state is AgentState.STOPPED and "repeated calls that were refused, in 3 turns" in answer.reason
    assert answer.text.startswith("I could not finish this: the model repeated calls that were refused")
    assert "scrape" in answer.text and "not found" in answer.text


async def test_a_model_that_insists_on_a_denied_call_is_stopped_and_one_that_tries_others_is_not():
    @tool
    async def read(path: str) -> str:
        """Read a file."""
        return "text"

    policy = Policy(rules=[Rule(tool="read", arguments={"path": "secret*"}, verdict="deny", reason="It is secret.")])
    async with UnifiedToolLibrary(policy=policy) as library:
        library.register(read)
        model = ScriptedModel([call("read", path="secret")], loop=True)
        answer = await Agent(library, model).run("Read it")
        assert answer.state is AgentState.STOPPED and len(model.requests) == 4
        others = [call("read", path=f"secret{number}") for number in range(6)]
        answer = await Agent(library, ScriptedModel([*others, "Nothing there."])).run("Read it")
        assert answer.text == "Nothing there." and len(answer.steps) == 6


async def test_without_memory_it_repeats():
    made = []

    @tool
    async def scrape(selector: str) -> str:
        made.append(selector)
        raise ValueError("not found")

    model = ScriptedModel([call("scrape", selector="a")], loop=True)
    await Agent([scrape], model, memory=False, limits=RunLimits(turns=5)).run("How many stars?")
    assert len(made) == 5


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (RunLimits(calls=3), "it made 3 calls (limit 3)"),
        (RunLimits(tokens=25), "it used 30 tokens (limit 25)"),
        (RunLimits(cost=0.02, price=lambda usage: usage.total_tokens / 1000), "it cost 0.02 (limit 0.02)"),
    ],
)
async def test_limits_end_a_run(limits, reason):
    turn = ModelReply(tool_calls=(ToolCall(name="add", arguments={"a": 1, "b": 1}),), usage=Usage(input_tokens=10))
    answer = await Agent([add], ScriptedModel([turn], loop=True), limits=limits).run("Go")
    assert answer.state is AgentState.STOPPED and answer.reason == reason


@in_virtual_time
async def test_a_slow_model_is_stopped_by_the_limit_on_time(monkeypatch):
    monkeypatch.setattr("ferrule.agent.budget.time", SimpleNamespace(monotonic=loop_time))

    class Slow:
        name = "slow"

        async def generate(self, request, on_text=None):
            await asyncio.Event().wait()

    answer = await Agent([], Slow(), limits=RunLimits(seconds=2)).run("Go")
    assert answer.state is AgentState.STOPPED and "did not reply within the time limit" in answer.reason


async def test_calls_beyond_the_most_of_a_turn_are_refused_and_answered():
    calls = [call("add", a=n, b=0) for n in range(5)]
    answer = await Agent([add], ScriptedModel([calls, "ok"]), limits=RunLimits(calls_per_turn=3)).run("Go")
    assert [m["content"] for m in answer.messages[3:6]] == ["0", "1", "2"]
    assert all("was not made" in m["content"] for m in answer.messages[6:8]) and answer.text == "ok"


def test_a_limit_must_make_sense():
    with pytest.raises(SetupError, match="turns must be more than 0"):
        RunLimits(turns=0)
    with pytest.raises(SetupError, match="needs a price"):
        RunLimits(cost=1.0)


async def test_a_model_that_fails_ends_the_run_with_what_was_done():
    model = ScriptedModel([call("add", a=1, b=2), ModelRefused("the key is wrong")])
    answer = await Agent([add], model).run("What is 1 + 2?")
    assert answer.state is AgentState.STOPPED and answer.reason == "the key is wrong"
    assert "The last result: 3" in answer.text


async def test_a_model_with_empty_replies_is_asked_again_and_then_stopped():
    async with UnifiedToolLibrary() as library:
        answer = await Agent(library, ScriptedModel(["", "", ""])).run("Go")
        assert answer.state is AgentState.STOPPED and "3 replies in a row without a call or an answer" in answer.reason
        answer = await Agent(library, ScriptedModel(["", "Here I am."])).run("Go")
        assert answer.text == "Here I am."


async def test_events_tell_what_happens_as_it_happens():
    agent = Agent([add], ScriptedModel([call("add", a=1, b=2), "It is 3."]))
    seen = [event async for event in agent.stream("What is 1 + 2?")]
    kinds = [type(event) for event in seen if not isinstance(event, TextPiece)]
    assert kinds == [TurnStarted, CallStarted, CallEnded, TurnStarted, RunEnded]
    assert "".join(event.text for event in seen if isinstance(event, TextPiece)) == "It is 3."


async def test_leaving_the_stream_ends_the_run_and_its_calls():
    ended, has_begun = [], asyncio.Event()

    @tool
    async def slow() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    stream = Agent([slow], ScriptedModel([call("slow")])).stream("Go")
    async for event in stream:
        if isinstance(event, CallStarted):
            await has_begun.wait()
            break
    await stream.aclose()
    assert ended == [True]


async def test_an_agent_can_be_held_to_some_tools():
    async with UnifiedToolLibrary() as library:
        library.register(add, fail)
        model = ScriptedModel([call("fail", reason="x"), "no"])
        agent = Agent(library, model, tools=["add"], control_tools=["ask_user", "finish_task"])
        answer = await agent.run("Go")
        assert answer.steps[0].error_type == "permission_denied"
        assert [s["function"]["name"] for s in model.requests[0].tools] == ["add", "ask_user", "finish_task"]
        agent.load_tools_by_config({"fail"})
        agent.register_tool(tool(name="third")(lambda: 1))
        assert {s["function"]["name"] for s in agent._toolbox.offer("x").schemas} >= {"fail", "third"}


async def test_tools_may_appear_while_a_run_goes_on():
    async with UnifiedToolLibrary() as library:

        @tool
        async def learn() -> str:
            """Learn to add."""
            library.register(add)
            return "learned"

        library.register(learn)
        model = ScriptedModel([call("learn"), call("add", a=1, b=2), "3"])
        answer = await Agent(library, model).run("Go")
        assert answer.steps[1].text == "3"
        assert "add" in {s["function"]["name"] for s in model.requests[1].tools}


async def test_of_very_many_tools_some_are_shown_and_the_others_found():
    def make(number: int):
        @tool(name=f"catalogue_{number}")
        async def look(query: str) -> str:
            """Look something up in a large catalogue of rare things from all over the world."""
            return f"{number}: {query}"

        return look

    async with UnifiedToolLibrary() as library:
        library.register(add, *map(make, range(150)))
        found = call("call_tool", name="catalogue_112", arguments={"query": "amber"})
        model = ScriptedModel([call("search_tools", query="rare things"), found, "done"])
        agent = Agent(library, model, core_tools=["add"], control_tools=["finish_task"])
        answer = await agent.run("Look up amber")
        shown = {s["function"]["name"] for s in model.requests[0].tools}
        assert {"add", "search_tools", "call_tool", "finish_task"} <= shown and len(shown) < 20
        assert "112: amber" in answer.steps[1].text


async def test_the_hub_backs_up_a_tool_that_fails():
    @tool(name="search", read_only=True)
    async def broken(query: str) -> str:
        """Search."""
        raise RuntimeError("down")

    @tool(name="search", read_only=True)
    async def good(query: str) -> str:
        """Search."""
        return f"found {query}"

    from dataclasses import replace

    from ferrule.kinds.function.tools import tool_of

    async with UnifiedToolLibrary() as library:
        library.register(replace(tool_of(broken), source="tools"), replace(tool_of(good), source="skills"))
        answer = await Agent(library, ScriptedModel([call("search", query="x"), "ok"])).run("Go")
        assert answer.steps[0].text == "found x"


async def test_records_and_events_name_the_run():
    seen = []
    async with UnifiedToolLibrary() as library:
        library.register(add)
        library.engine.subscribe(lambda event: seen.append(event))
        answer = await Agent(library, ScriptedModel([call("add", a=1, b=2), "3"]), name="counter").run("Go")
        (record,) = await library.engine.query_call_records(conversation_id=answer.run_id)
        assert record.caller_id == "counter" and record.metadata["tool_call_id"] == "call_1"
        types = ["agent_started", "model_started", "model_ended", "before_tool_call", "execution_started"]
        types += ["execution_completed", "after_tool_call", "model_started", "model_ended", "agent_ended"]
        assert [event.event_type.value for event in seen] == types
        assert seen[-1].data["run_id"] == answer.run_id and seen[-1].data["answer"] is answer


async def test_a_conversation_goes_on_with_its_history():
    model = ScriptedModel(["Hello Ann.", "You are Ann."])
    agent = Agent([], model, instructions="Be kind.")
    first = await agent.run("I am Ann.")
    second = await agent.run("Who am I?", history=first.messages)
    assert [m["content"] for m in second.messages[1:]] == ["I am Ann.", "Hello Ann.", "Who am I?", "You are Ann."]
    assert [m["role"] for m in model.requests[1].messages].count("system") == 1
    assert "Be kind." in second.messages[0]["content"]


async def test_secrets_of_a_call_are_not_in_its_step():
    from ferrule import Secret

    @tool
    async def login(user: str, password: Annotated[str, Secret]) -> str:
        return "welcome"

    answer = await Agent([login], ScriptedModel([call("login", user="ann", password="hunter2!"), "in"])).run("Go")
    assert answer.steps[0].arguments["user"] == "ann" and "hunter2!" not in str(answer.steps)


async def test_a_tool_that_calls_tools_is_held_to_the_same_list():
    @tool
    async def outer(context: ToolExecutionContext) -> str:
        return (await context.call_tool("add", {"a": 1, "b": 2})).text

    answer = await Agent([add, outer], ScriptedModel([call("outer"), "ok"])).run("Go")
    assert answer.steps[0].text == "3"


async def test_after_much_trouble_the_model_is_told_how_things_stand():
    turns = [call("fail", reason=f"reason {n}") for n in range(3)]
    model = ScriptedModel([*turns, "I give up."])
    await Agent([fail], model).run("Go")
    last = model.requests[3].messages[-1]
    assert last["role"] == "user" and "reason 2" in last["content"]


async def test_a_call_in_the_text_is_not_shown_to_those_who_watch():
    text = 'I will add.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    agent = Agent([add], ScriptedModel([text, "Thought: easy\nFinal Answer: It is 3."]))
    seen = [event async for event in agent.stream("What is 1 + 2?")]
    shown = "".join(event.text for event in seen if isinstance(event, TextPiece))
    assert shown.startswith("I will add.") and "tool_call" not in shown and '"a"' not in shown
    assert isinstance(seen[-1], RunEnded) and seen[-1].answer.text == "It is 3."
