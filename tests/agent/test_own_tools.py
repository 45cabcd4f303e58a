"""The tools by which an agent asks, finishes, and finds and calls others: what it is shown is what it may call."""

import pytest

from ferrule import Agent, AgentState, Policy, Principal, Rule, SetupError, Tool, UnifiedToolLibrary, tool
from ferrule.kinds.function.tools import tool_of
from ferrule.testing import ScriptedModel

ASK = [{"name": "ask_user", "arguments": {"question": "Which one?"}}]
READER = Principal(kind="agent", name="reader", max_effect="read_only")
CALLED = [("lookup_99", {"key": "a"}), ("wipe", {})]


def make_tool(number: int) -> Tool:
    async def lookup(key: str) -> str:
        return f"{number}: {key}"

    lookup.__name__ = lookup.__qualname__ = f"lookup_{number}"
    lookup.__doc__ = f"Look up a value in the table number {number}. " + "It has many columns. " * 40
    return tool_of(lookup, read_only=True)


@tool(destructive=True)
async def wipe() -> str:
    """Wipe everything."""
    return "wiped"


def shown_names(model: ScriptedModel) -> set[str]:
    return {str(schema["function"]["name"]) for schema in model.requests[0].tools or ()}


async def test_an_agent_that_may_only_read_can_ask_and_finish():
    model = ScriptedModel([ASK, [{"name": "finish_task", "arguments": {"message": "It is b."}}]])
    agent = Agent([], model, principal=READER)
    waiting = await agent.run("Look it up")
    assert waiting.state is AgentState.WAITING and [q.text for q in waiting.questions] == ["Which one?"]
    assert (await agent.resume(waiting.run_id, "b")).text == "It is b."


async def test_an_agent_that_may_only_read_calls_tools_that_it_found_and_no_others():
    policies = (None, Policy(rules=[Rule(verdict="allow", tool="lookup_*")], default="deny"))
    for policy in policies:
        async with UnifiedToolLibrary(policy=policy) as library:
            library.register(wipe, *map(make_tool, range(100)))
            calls = [{"name": "call_tool", "arguments": {"name": name, "arguments": a}} for name, a in CALLED]
            model = ScriptedModel([calls[:1], calls[1:], "Done."])
            answer = await Agent(library, model, principal=READER, tools=["lookup_*"]).run("Find the value of a")
        assert {"search_tools", "call_tool"} <= shown_names(model)
        assert [(step.text, step.error_type) for step in answer.steps][0] == ("99: a", None)
        assert answer.steps[1].error_type == "permission_denied"


async def test_an_own_tool_that_a_rule_denies_is_neither_shown_nor_callable():
    policy = Policy(rules=[Rule(verdict="deny", tool="ask_user", reason="Nobody is there.")])
    async with UnifiedToolLibrary(policy=policy) as library:
        model = ScriptedModel([ASK, "Done."])
        answer = await Agent(library, model).run("Look it up")
    assert "ask_user" not in shown_names(model)
    assert answer.state is AgentState.FINISHED
    assert [step.error_type for step in answer.steps] in (["permission_denied"], ["tool_not_found"])


async def test_a_destructive_tool_with_the_name_of_an_own_tool_is_restricted():
    async with UnifiedToolLibrary() as library:
        library.register(tool_of(wipe, name="call_tool"))
        principal = READER.extended_by(["call_tool"])
        permissions = library.engine.permissions(principal, Policy(default="deny"))
        [made] = library.engine.registry.candidates("call_tool")
        assert not permissions.may_use(made)


# Names that are no tool's


async def test_an_agent_with_the_name_of_no_tool_is_refused_with_the_names_that_are_close():
    async with UnifiedToolLibrary() as library:
        with pytest.raises(SetupError, match=r"There is no tool 'calclator'\. Did you mean 'calculator'\?"):
            Agent(library, ScriptedModel(["Hello."]), tools=["calculator", "calclator"])


async def test_an_agent_made_before_its_library_is_opened_is_checked_when_it_runs():
    library = UnifiedToolLibrary()
    typing_error = Agent(library, ScriptedModel(["Hello."]), tools=["calclator"])
    correct = Agent(library, ScriptedModel(["Hello."]), tools=["calculator", "get_*", "finish_task", "search_tools"])
    async with library:
        with pytest.raises(SetupError, match=r"There is no tool 'calclator'\. Did you mean 'calculator'\?"):
            await typing_error.run("Hi")
        assert (await correct.run("Hi")).text == "Hello."


def test_an_agent_without_a_library_checks_the_names_of_its_list():
    with pytest.raises(SetupError, match=r"There is no tool 'calclator'\. Did you mean 'calculator'\?"):
        Agent(["calclator"], ScriptedModel(["Hello."])).run_sync("Hi")
