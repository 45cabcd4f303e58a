import logging

from ferrule import ToolEngine, ToolExecutionResult, ToolSubAgent
from ferrule.catalog.search import RegistryIndex
from ferrule.core.spec import Tool, ToolSpec
from ferrule.library.meta_tools import make_meta_tools


async def test_a_sub_agent_remembers_its_own_calls_only():
    async with ToolEngine() as engine:
        agent, other = ToolSubAgent("one", engine, "main"), ToolSubAgent("other", engine)
        await agent.execute("echo", {"message": "x"})
        await agent.execute("calculator", {"expression": "1/0"})
        await other.execute("echo", {"message": "y"})
        summary = agent.get_execution_summary()
        records = await engine.query_call_records(conversation_id=agent.conversation_id)
    assert (summary["total_calls"], summary["successful_calls"], summary["success_rate"]) == (2, 1, 50.0)
    assert summary["tool_usage"] == {"echo": 1, "calculator": 1}
    assert [d["is_success"] for d in summary["call_details"]] == [True, False]
    assert {r.caller_id for r in records} == {"one"}


async def test_a_sub_agent_may_be_held_to_a_few_tools():
    async with ToolEngine() as engine:
        agent = ToolSubAgent("a", engine, tools={"echo"})
        refused, echoed = await agent.execute_batch([("calculator", {"expression": "1"}), ("echo", {"message": "x"})])
    assert (refused.error_type, echoed.is_success) == ("permission_denied", True)
    assert refused.error == "Tool 'calculator' is not among the tools that may be used here: echo."
    assert agent.get_brief_summary()["has_errors"]


async def test_callbacks_get_every_result_and_a_failing_one_harms_nobody(caplog):
    result_list: list[ToolExecutionResult] = []

    async def callback(result: ToolExecutionResult) -> None:
        result_list.append(result)
        raise RuntimeError("boom")

    async with ToolEngine() as engine:
        agent = ToolSubAgent("a", engine, on_result_callback=callback)
        with caplog.at_level(logging.ERROR):
            assert (await agent.execute("echo", {"message": "x"})).is_success
    assert len(result_list) == 1
    assert "boom" in caplog.text


async def test_an_agent_that_called_nothing_has_an_empty_summary():
    async with ToolEngine() as engine:
        agent = ToolSubAgent("a", engine)
        assert agent.get_brief_summary() == {
            "total_calls": 0,
            "success_rate": 0.0,
            "tool_usage": {},
            "has_errors": False,
        }
        assert await agent.execute_batch([]) == []


async def test_the_tool_that_calls_others_holds_to_the_tools_of_its_agent():
    async with ToolEngine() as engine:
        engine.register(*make_meta_tools(RegistryIndex(engine.registry), engine))
        agent = ToolSubAgent("a", engine, tools={"echo", "call_tool", "search_tools"})
        echoed = await agent.execute("call_tool", {"name": "echo", "arguments": {"message": "x"}})
        inner = {"name": "calculator", "arguments": {"expression": "1"}}
        refused = await agent.execute("call_tool", inner)
        hidden = await agent.execute("call_tool", {"name": "call_tool", "arguments": inner})
        found = await agent.execute("search_tools", {"query": "calculator echo"})
        everywhere = await engine.execute("search_tools", {"query": "calculator echo"})
        records = await engine.query_call_records(tool_name="calculator")
        assert {record.error_type for record in records} == {"permission_denied"}
    assert echoed.output == {"message": "x"}
    assert "Tool 'calculator' is not among the tools that may be used here: call_tool, echo" in (refused.error or "")
    assert refused.error_type == hidden.error_type == "permission_denied"
    assert [each["name"] for each in found.output["result"]] == ["echo"]
    assert {each["name"] for each in everywhere.output["result"]} == {"echo", "calculator"}


async def test_a_tool_that_is_allowed_lends_its_leave_to_no_other_by_an_alias():
    class Files:
        """Files."""

        async def delete(self, path: str) -> str:
            """Delete a file."""
            return f"deleted {path}"

        async def read(self, path: str) -> str:
            """Read a file."""
            return f"read {path}"

    async with ToolEngine() as engine:
        engine.register(Files(), Tool(spec=ToolSpec(tool_id="notes", aliases=["Files__delete"]), handler="echo"))
        agent = ToolSubAgent("a", engine, tools={"notes"})
        refused = await agent.execute("Files__delete", {"path": "x"})
    assert refused.error_type == "permission_denied"
