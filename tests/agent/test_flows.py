"""The flows of the design documents: their own code on our library, and each step of the tool-call loop."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

import pytest

import ferrule
from ferrule import ToolEngineEventType, ToolExecutionResult, ToolSpec, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.memory import ExecutionContext
from ferrule.testing import ScriptedModel
from tests.memory.runs import Browser
from tests.support.code_blocks import python_blocks

SEEDS = Path(__file__).parents[3] / "shared/seeds"
TOOLSCORE = SEEDS / "001-toolscore.md"
needs_documents = pytest.mark.skipif(
    not SEEDS.is_dir(), reason="needs the design documents in shared/seeds beside the project"
)


def namespace(**more: Any) -> dict[str, Any]:
    known = {name: getattr(ferrule, name) for name in ferrule.__all__}
    typing = {"Any": Any, "Dict": dict, "List": list, "Optional": Optional}
    return {
        **known,
        **typing,
        "dataclass": dataclass,
        "field": field,
        "datetime": datetime,
        "ExecutionContext": ExecutionContext,
        "ExecutionResult": ToolExecutionResult,
        "ToolSpec": ToolSpec,
        **more,
    }


def run_sample(containing: str, names: dict[str, Any]) -> dict[str, Any]:
    [block] = [block for block in python_blocks(TOOLSCORE) if containing in block]
    exec(compile(block, containing, "exec"), names)
    return names


class Decision:
    def __init__(self, action_type: str, **said: Any) -> None:
        self.action_type = action_type
        self.__dict__.update({"tool_id": None, "action": None, "parameters": {}, **said})


@needs_documents
async def test_the_flow_with_memory_of_001_runs_as_it_stands():
    browser = Browser()

    class ScriptedAgent:
        """Insists on one selector until the context knows it fails."""

        async def make_contextual_decision(self, context: Any) -> Decision:
            failed = context.learned_patterns.get("browser", {}).get("failed_selectors", [])
            if context.current_observations:
                return Decision("complete")
            selector = "a.stars" if "a.social-count" in failed else "a.social-count"
            return Decision("execute_tool", tool_id="browser", action="extract", parameters={"selector": selector})

    async with UnifiedToolLibrary() as library:
        library.register(browser)
        names = namespace(tool_library=library, agent=ScriptedAgent(), AgentDecision=Decision)
        run_sample("async def agent_workflow_with_memory", names)
        await names["agent_workflow_with_memory"]("count the stars")
        assert browser.executed == [("extract", "a.social-count"), ("extract", "a.stars")]


@needs_documents
async def test_the_prompts_of_001_can_be_made_from_our_context():
    context = ExecutionContext(task_description="count the stars")
    failed = ToolExecutionResult(is_success=False, tool_name="browser", error="Selector 'a.x' not found")
    context.record("browser", "extract", {"selector": "a.x"}, failed)
    names = run_sample("def create_contextual_tool_selection_prompt", namespace(format_tools_for_prompt=str))
    assert "避免使用选择器 ['a.x']" in names["create_contextual_tool_selection_prompt"](context)
    assert "['a.x']" in names["create_adaptive_execution_prompt"](context, "browser")


@needs_documents
async def test_the_runtime_of_001_works_on_our_library():
    browser = Browser()

    class Thinker:
        async def generate(self, prompt: str) -> str:
            wrong = "失败" not in prompt.split("请决定")[0] or "0" in prompt.split("失败: ")[1][:1]
            selector = "a.social-count" if wrong else "a.stars"
            return json.dumps(
                {
                    "action_type": "execute_tool",
                    "tool_id": "browser",
                    "action": "extract",
                    "parameters": {"selector": selector},
                }
            )

    names = namespace()
    run_sample("class ReasoningRuntime", names)
    run_sample("class ContextAwareReasoningRuntime", names)

    runtime_of_001: Any = names["ContextAwareReasoningRuntime"]

    class Runtime(runtime_of_001):  # type: ignore[misc]
        async def register_builtin_tools(self) -> None:
            self.tool_library.register(browser)

        async def should_complete_task(self, context: ExecutionContext) -> bool:
            return bool(context.current_observations)

        async def should_replan(self, context: ExecutionContext) -> bool:
            return False

        def parse_agent_decision(self, response: str) -> Any:
            return json.loads(response)

        async def validate_decision(self, decision: Any, context: ExecutionContext) -> Any:
            return decision

        async def update_execution_context(self, context: ExecutionContext, decision: Any, result: Any) -> None:
            context.record(decision["tool_id"], decision["action"], decision["parameters"], result)

        def generate_final_result(self, context: ExecutionContext) -> str:
            return str(context.current_observations[-1])

    runtime = Runtime()
    runtime.agent_model = Thinker()
    await runtime.initialize()
    try:
        assert await runtime.execute_user_query_with_context("count the stars") == "28"
        assert browser.executed == [("extract", "a.social-count"), ("extract", "a.stars")]
        await runtime.suggest_tool_switch(ExecutionContext(task_description="count"), "browser")
    finally:
        await runtime.tool_library.aclose()


# Each step of 003


@tool
async def bing_search(query: str) -> str:
    """Search the web."""
    return f"results for {query}"


async def test_a_call_of_the_api_goes_through_every_step():
    """Parse, announce, execute, announce, answer, go on."""
    seen: list[Any] = []
    async with UnifiedToolLibrary() as library:
        library.register(bing_search)
        library.engine.subscribe(lambda event: seen.append(event.event_type), lambda event: event.call_id is not None)
        script: list[Any] = [
            {"name": "bing_search", "arguments": '{"query": "气候变化最新研究"}', "id": "call_123"},
            "总结",
        ]
        model = ScriptedModel(script)
        answer = await Agent(library, model).run("搜索气候变化")
        assert seen[0] is ToolEngineEventType.BEFORE_TOOL_CALL and seen[-1] is ToolEngineEventType.AFTER_TOOL_CALL
        expected = {"role": "tool", "tool_call_id": "call_123", "name": "bing_search"}
        assert answer.messages[3] == {**expected, "content": "results for 气候变化最新研究"}
        assert model.requests[1].messages[-1] == answer.messages[3] and answer.text == "总结"


@pytest.mark.parametrize(
    "text",
    [
        'bing_search(query="news")',
        '{"name": "bing_search", "arguments": {"query": "news"}}',
        'bing_search("news")',
    ],
)
async def test_the_three_forms_of_text_are_read(text):
    answer = await Agent([bing_search], ScriptedModel([text, "done"])).run("Go")
    assert answer.steps[0].text == "results for news"


async def test_tools_are_registered_one_by_one_together_and_by_their_names():
    async with UnifiedToolLibrary() as library:
        agent = Agent(library, ScriptedModel([{"name": "calculator", "arguments": {"expression": "1"}}, "no"]))
        agent.register_tool(bing_search)
        agent.register_tools(tool(name="one")(lambda: 1), tool(name="two")(lambda: 2))
        agent.load_tools_by_config({"one", "two"})
        answer = await agent.run("Go")
        assert answer.steps[0].error_type == "permission_denied"
