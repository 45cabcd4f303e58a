"""Decisions by context: the contexts, prompts and runtimes of 001 §3 and §8."""

import json
from typing import Any

import pytest

import ferrule
from ferrule import ExecutionContext, ToolEngineConfig, UnifiedToolLibrary, documents, tool
from ferrule.agent.decisions import parse_decision
from ferrule.agent.formats import DecisionFormat
from ferrule.testing import ScriptedModel
from tests.support.virtual_time import in_virtual_time
from tests.test_documents import Lookup, Page


def decide(action_type: str, **fields: Any) -> str:
    return json.dumps({"action_type": action_type, **fields})


@pytest.mark.parametrize("parameters", ['[{"selector": "a.x"}]', "[selector=a.x]", '{"selector": "a.x"}'])
def test_parameters_in_brackets_are_read(parameters: str):
    decision = parse_decision(f"ACTION_TYPE: execute_tool\nSELECTED_TOOL: Page\nPARAMETERS: {parameters}")
    assert decision.parameters == decision["parameters"] == {"selector": "a.x"}
    assert parse_decision(decide("execute_tool", tool_id="Page", parameters=[{"a": 1}, {"b": 2}])).parameters == {
        "a": 1,
        "b": 2,
    }


async def test_contexts_are_updated_by_the_functions_of_the_document():
    context = ExecutionContext("Click")
    failed = documents.ToolResult(False, "Page", error="selector 'a.x' not found", error_type="execution_error")
    decision = {"action_type": "execute_tool", "tool_id": "Page", "action": "click", "parameters": {"selector": "a.x"}}
    await documents.update_execution_context(context, decision, failed)
    await documents.learn_from_failure(context, {"tool_id": "Page", "action": "open", "error": "timeout"})
    assert context.learned_patterns["Page"] == {
        "failed_selectors": ["a.x"],
        "failed_actions": ["click", "open"],
        "error_patterns": ["selector 'a.x' not found", "timeout"],
    }
    assert "a.x" in documents.create_contextual_tool_selection_prompt(context)
    assert "a.x" in documents.create_adaptive_execution_prompt(context, "Page")
    assert "a.x" in documents.create_contextual_decision_prompt(context)


async def test_a_model_that_decides_sees_names_parameters_and_schemas():
    model = ScriptedModel([decide("complete", reasoning="done")])
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(Page())
        await ferrule.Agent(library, model, style="decisions").run("Click")
    prompt = str(model.requests[0].messages[-1]["content"])
    assert "- Page (click): A page with one element.\n  click(selector, timeout?): Click on an element. {" in prompt
    assert '"selector":{"type":"string"}' in prompt and '"required":["selector"]' in prompt


async def test_the_way_an_agent_asks_for_decisions_can_be_overridden():
    class Shorter(DecisionFormat):
        def create_contextual_decision_prompt(self, context: ExecutionContext) -> str:
            return f"Next for {context.task_description}, after {len(context.executed_steps)}?"

        def parse_agent_decision(self, text: str) -> documents.AgentDecision:
            if text == "stop":
                return documents.AgentDecision("complete", reasoning="stopped")
            return documents.AgentDecision("execute_tool", "calculator", None, {"expression": text})

    model = ScriptedModel(["6*7", "stop"])
    async with UnifiedToolLibrary() as library:
        answer = await ferrule.Agent(library, model, style=Shorter()).run("sums")
    assert answer.text == "stopped\n\n42"
    assert [r.messages[-1]["content"] for r in model.requests] == ["Next for sums, after 0?", "Next for sums, after 1?"]


@in_virtual_time  # the failed call is repeated after seconds
async def test_the_hooks_of_the_runtime_can_be_overridden():
    class Runtime(documents.ContextAwareReasoningRuntime):
        failures: list[str | None] = []

        def build_failure_summary(self, context: ExecutionContext) -> str:
            return f"MY SUMMARY {len(context.failed_attempts)}"

        async def handle_execution_failure(self, context: ExecutionContext, decision: Any, result: Any) -> None:
            self.failures.append(result.error_message)
            await super().handle_execution_failure(context, decision, result)

        async def should_complete_task(self, context: ExecutionContext) -> bool:
            return any(step["success"] for step in context.executed_steps)

        def generate_final_result(self, context: ExecutionContext) -> Any:
            return ("final", context.final_answer, context.learned_patterns)

    async def wait_for_page(timeout: int) -> str:
        """Wait for a page."""
        if timeout < 20:
            raise TimeoutError("timeout: the page did not load")
        return "loaded"

    calls = [decide("execute_tool", tool_id="wait_for_page", parameters={"timeout": t}) for t in (10, 20)]
    runtime = Runtime(ScriptedModel(calls))
    async with runtime:
        runtime.tool_library.register(tool(read_only=True)(wait_for_page))
        name, answer, patterns = await runtime.execute_user_query_with_context("Wait for the page.")
    assert (name, answer) == ("final", "loaded") and "timeout" in str(runtime.failures[0])
    [adjustment] = patterns["wait_for_page"]["suggested_adjustments"]
    assert adjustment["adjusted_params"] == {"timeout": 20}
    prompts = [str(request.messages[-1]["content"]) for request in runtime.agent_model.requests]
    assert "MY SUMMARY 1" in prompts[1] and 'try {"timeout":20} instead' in prompts[1]


async def test_the_runtime_replans_and_switches_tools_and_says_what_is_no_tool():
    plan = {"steps": [{"id": 1, "description": "ask", "tool_type": "lookup", "parameters": {"query": "x"}}]}
    script = [
        decide("execute_tool", tool_id="no_such_tool", parameters={}),
        decide("replan"),
        json.dumps(plan),
        decide("execute_tool", tool_id="lookup", parameters={"query": "stars"}),
        decide("complete", reasoning="Found."),
    ]
    runtime = documents.ContextAwareReasoningRuntime(ScriptedModel(script))
    async with runtime:
        runtime.tool_library.register(Lookup())
        result = await runtime.execute_user_query_with_context("Look it up.")
    assert result["success"] and result["result"] == "Found.\n\nabout stars" and result["error"] is None


async def test_a_run_without_a_decision_says_why_it_has_no_result():
    async with documents.ContextAwareReasoningRuntime(ScriptedModel(["I do not know."] * 20)) as runtime:
        result = await runtime.execute_user_query_with_context("Look it up.")
    assert not result["success"] and "without a call or an answer" in result["error"]


async def test_the_runtime_executes_a_plan_with_references_between_its_steps():
    steps = [
        {"id": 1, "description": "add", "tool_type": "calculator", "parameters": {"expression": "40+2"}},
        {"id": 2, "description": "think", "tool_type": "none"},
        {"id": 3, "description": "half", "tool_type": "calculator", "parameters": {"expression": "${1.result}/2"}},
    ]
    async with documents.ReasoningRuntime(ScriptedModel([json.dumps({"steps": steps})])) as runtime:
        results = await runtime.execute_user_query("What is half of 40 + 2?")
        next_step = await runtime.analyze_result_and_decide_next(results[-1])
        failed = await runtime.tool_library.execute_tool("nothing", None, {})
        assert (await runtime.analyze_result_and_decide_next(failed)).action_type == "switch_tool"
        assert not await runtime.analyze_result(failed)
        assert (await runtime.register_file_processor()).error is not None
    assert [result.output for result in results] == [{"result": 42}, {"result": 21}]
    assert next_step.action_type == "execute_tool"


async def test_the_runtime_takes_a_model_whose_generate_takes_and_returns_a_text():
    class Text:
        prompts: list[str] = []

        async def generate(self, prompt: str) -> str:
            self.prompts.append(prompt)
            return '["time"]'

    async with documents.ReasoningRuntime(Text()) as runtime:
        assert await runtime.analyze_tool_requirements("What time is it?") == ["time"]
        chosen = await runtime.select_tools("What time is it?", ["time"])
    assert "get_time" in [spec.tool_id for spec in chosen] and "What time is it?" in Text.prompts[0]


async def test_without_a_model_the_runtime_chooses_by_words():
    async with documents.ReasoningRuntime() as runtime:
        requirements = await runtime.analyze_tool_requirements("What is 6 * 7?")
        results = await runtime.execute_user_query("What is 6 * 7?")
    assert requirements == ["What is 6 * 7?"] and results[0].output == {"result": 42}


async def test_the_model_is_told_what_was_wrong_with_its_decision():
    script = ["Hm.", decide("execute_tool", tool_id="lookupp", parameters={}), decide("complete", reasoning="Done.")]
    runtime = documents.ContextAwareReasoningRuntime(ScriptedModel(script))
    async with runtime:
        runtime.tool_library.register(Lookup())
        await runtime.execute_user_query_with_context("Look it up.")
    prompts = [str(request.messages[-1]["content"]) for request in runtime.agent_model.requests]
    assert "There is no decision in the reply 'Hm.'" in prompts[1]
    assert "There is no tool 'lookupp' here. Did you mean 'lookup'?" in prompts[2] and "'Hm.'" not in prompts[2]


async def test_a_switch_calls_the_tool_that_the_decision_names_and_is_corrected_without_an_alternative():
    class Broken(Lookup):
        name = "broken"

        async def execute(self, query: str) -> dict[str, Any]:
            raise RuntimeError("out of order")

    script = [
        decide("execute_tool", tool_id="broken", parameters={"query": "a"}),
        decide("switch_tool", tool_id="lookup", parameters={"query": "b"}),
        decide("complete", reasoning="Found."),
    ]
    lookup, runtime = Lookup(), documents.ContextAwareReasoningRuntime(ScriptedModel(script))
    async with runtime:
        runtime.tool_library.register(Broken(), lookup)
        result = await runtime.execute_user_query_with_context("Look it up.")
    assert lookup.queries == ["b"] and result["success"] and result["error"] is None

    script = [
        decide("execute_tool", tool_id="broken", parameters={"query": "a"}),
        decide("switch_tool"),
        decide("complete", reasoning="Nothing was found."),
    ]
    library = UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False))
    runtime = documents.ContextAwareReasoningRuntime(ScriptedModel(script), tool_library=library)
    async with runtime:
        library.register(Broken())
        await runtime.execute_user_query_with_context("Look it up.")
    prompt = str(runtime.agent_model.requests[-1].messages[-1]["content"])
    assert "No other tool can do what 'broken' could not" in prompt


async def test_a_model_that_repeats_a_refused_call_is_shown_only_the_alternatives():
    class Broken(Lookup):
        name, description = "broken", "Look things up."

        async def execute(self, query: str) -> dict[str, Any]:
            raise RuntimeError("out of order")

    class FirstTool:
        """Executes the first tool that it is offered, until something was found."""

        async def generate(self, prompt: str) -> str:
            if "about stars" in prompt:
                return decide("complete", reasoning="Found.")
            tool_id = "broken" if "- broken: Look things up." in prompt else "lookup"
            return decide("execute_tool", tool_id=tool_id, parameters={"query": "stars"})

    library = UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False))
    runtime = documents.ContextAwareReasoningRuntime(FirstTool(), tool_library=library)
    async with runtime:
        library.register(Broken(), Lookup())
        result = await runtime.execute_user_query_with_context("Look the stars up.")
    assert result["success"] and result["result"] == "Found.\n\nabout stars"


async def test_a_plan_of_calls_as_the_document_writes_it_is_made():
    calls = [{"tool_id": "lookup", "action": "lookup", "parameters": {"query": "stars"}}]
    lookup, runtime = Lookup(), documents.ReasoningRuntime(ScriptedModel([json.dumps(calls)] * 2))
    async with runtime:
        runtime.tool_library.register(lookup)
        [result] = await runtime.execute_user_query("Look the stars up.")
    assert result["success"] and lookup.queries == ["stars"]
