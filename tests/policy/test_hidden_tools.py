"""Tools and actions that a principal may not call are not listed, described or suggested to it."""

from dataclasses import replace

import pytest
from mcp import Client

from ferrule import ExecutionContext, Policy, Principal, Rule, RunLimits, ToolExecutionContext, tool
from ferrule.agent import Agent
from ferrule.errors import ToolNotFound
from ferrule.kinds.function.tools import tool_of
from ferrule.server.mcp import McpServer
from ferrule.testing import ScriptedModel
from tests.support.engines import library_with

AGENT = Principal(kind="agent", name="demo")


@tool(tags=["storage"])
class Disk:
    """A disk."""

    async def read(self) -> str:
        """Read it."""
        return "data"

    async def format(self) -> str:
        """Format it."""
        return "formatted"


@tool(tags=["erasing"])
async def wipe() -> str:
    """Wipe something."""
    return "wiped"


@tool(tags=["writing"])
async def note(text: str) -> str:
    """Write a note."""
    return text


NO_FORMAT = Policy(rules=[Rule(verdict="deny", tool="Disk__format"), Rule(verdict="deny", tool="wipe")])


async def test_lists_have_only_the_permitted_actions():
    async with library_with(Disk, wipe, note, policy=NO_FORMAT) as library:
        actions = {spec.tool_id: [c.name for c in spec.capabilities] for spec in await library.get_all_tools()}
        assert actions["Disk"] == ["read"] and "note" in actions and "wipe" not in actions
        disk = await library.get_tool_by_id("Disk")
        assert disk is not None and [c.name for c in disk.capabilities] == ["read"]
        assert await library.get_tool_by_id("wipe") is None


async def test_descriptions_and_examples_have_only_the_permitted_actions():
    async with library_with(Disk, wipe, note, policy=NO_FORMAT) as library:
        one, several = (
            await library.get_tool_description_for_agent("Disk"),
            await library.get_all_tools_description_for_agent(),
        )
        assert all("Read it" in text and "Format it" not in text for text in (one, several))
        assert [example["action"] for example in await library.get_tool_usage_examples("Disk")] == ["read"]
        assert "Disk" not in [spec.tool_id for spec in await library.search_tools("format")]
        with pytest.raises(ToolNotFound) as hidden:
            await library.get_tool_description_for_agent("wip")
        assert "wipe" not in str(hidden.value)


async def test_of_two_tools_with_one_name_the_permitted_one_is_listed_and_called():
    @tool(name="pay", destructive=True)
    async def really_pay(amount: float) -> str:
        """Pay with real money."""
        return "paid"

    @tool(name="pay", read_only=True)
    async def simulate(amount: float) -> str:
        """Simulate a payment."""
        return "simulated"

    reader = Principal(kind="agent", name="reader", max_effect="read_only")
    async with library_with(
        replace(tool_of(really_pay), source="tools"), replace(tool_of(simulate), source="mcps")
    ) as library:
        spec = await library.get_tool_by_id("pay", principal=reader)
        texts = [
            spec.description if spec is not None else "",
            await library.get_tool_description_for_agent("pay", principal=reader),
            await library.get_all_tools_description_for_agent(principal=reader),
            str(library.schemas(principal=reader)),
            str(await library.get_tool_usage_examples("pay", principal=reader)) + "Simulate",
        ]
        assert all("Simulate" in text and "real money" not in text for text in texts), texts
        result = await library.execute_tool("pay", {"amount": 5}, context=ToolExecutionContext(principal=reader))
        assert result.text == "simulated"
        script = {"code": "pay(amount=5)"}
        result = await library.execute_tool("python_executor", script, context=ToolExecutionContext(principal=reader))
        assert "simulated" in result.text, result.text


async def test_suggestions_after_failures_name_only_permitted_tools_and_actions():
    @tool(tags=["storage"])
    async def lookup(path: str) -> str:
        """Read a disk."""
        raise FileNotFoundError(f"no disk {path}")

    @tool(tags=["storage"])
    class Store:
        """Read and format a disk."""

        async def fetch(self, path: str) -> str:
            """Read a disk from its path."""
            return path

        async def format(self, path: str) -> str:
            """Read a disk by its path, format it, and look up what was on the disk."""
            return path

    policy = Policy(rules=[Rule(verdict="deny", tool="Store__format"), Rule(verdict="deny", tool="wipe")])
    calls = [[{"name": "lookup", "arguments": {"path": f"disk{n}"}}] for n in range(4)]
    async with library_with(lookup, Store, wipe, policy=policy) as library:
        model = ScriptedModel([*calls, "done"])
        await Agent(library, model, limits=RunLimits(max_retries=1)).run("Read the disk and format it")
        texts = str(model.requests[-1].messages)
        assert "Store__fetch" in texts and "Store__format" not in texts and "wipe" not in texts
        context = ExecutionContext(task_description="Read the disk and format it")
        others = await library.get_alternative_tools("lookup", "read the disk and format it", context)
        assert {spec.tool_id: [c.name for c in spec.capabilities] for spec in others}["Store"] == ["fetch"]
        nobody = Principal(kind="agent", name="x", tools=frozenset({"lookup"}))
        assert await library.get_alternative_tools("lookup", "read the disk", context, principal=nobody) == []


async def test_the_category_tree_has_only_permitted_tools():
    async with library_with(Disk, wipe, note) as library:
        await library.enable_category_management()
        principal = Principal(kind="agent", name="demo", tools=frozenset({"note"}))
        assert await library.get_category_tree(principal=principal) == {"general": {"general": ["note"]}}
        assert [s.tool_id for s in await library.get_tools_by_category("general", principal=principal)] == ["note"]


@pytest.mark.parametrize("name", ["wipes", "Disk"])
async def test_an_mcp_client_is_not_told_about_other_tools(name):
    async with (
        library_with(Disk, wipe, note) as library,
        Client(McpServer(library, tools=["note"]).server()) as client,
    ):
        result = await client.call_tool(name, {})
    text = str(result.content)
    assert result.is_error and not any(word in text for word in ("'wipe'", "read", "format")), text


async def test_an_agent_is_not_told_which_other_tools_have_an_action():
    class Container:
        """A container."""

        async def dump(self) -> str:
            """Dump it."""
            return "dumped"

        async def close(self) -> str:
            """Close it."""
            return "closed"

    containers = [tool_of(Container, name=name) for name in ("Vault", "Safe")]
    async with library_with(*containers, note) as library:
        model = ScriptedModel([[{"name": "dump", "arguments": {}}], "done"])
        await Agent(library, model, tools=["note"]).run("Dump it")
    assert not any(name in str(model.requests[-1].messages) for name in ("Vault", "Safe"))


async def test_a_prompt_for_decisions_has_only_the_permitted_actions():
    async with library_with(Disk, note, policy=NO_FORMAT) as library:
        model = ScriptedModel(['{"action": "finish", "answer": "done"}'] * 5)
        await Agent(library, model, style="decisions").run("Read it")
    prompt = str(model.requests[0].messages)
    assert "Disk (read)" in prompt and "format)" not in prompt


async def test_the_hub_names_no_hidden_tool():
    async with library_with(Disk, wipe, note, policy=NO_FORMAT) as library:
        context = ToolExecutionContext(principal=AGENT)
        misspelled = await library.hub.execute_by_capability("erasin", {}, context)
        unrelated = await library.hub.execute_by_capability("storage", {}, context)
        without_action = await library.execute_tool("Disk", None, {}, context=context)
    for result in (misspelled, unrelated, without_action):
        text = f"{result.error} {result.metadata}"
        assert not result.is_success and "erasing" not in text and "format" not in text, text
