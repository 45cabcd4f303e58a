"""Each box and arrow of the design's flow, in its order: from the question to the answer."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.agent.answer import NO_TOOL, PlanCreated, StepEnded
from ferrule.core.spec import Tool
from ferrule.errors import ModelRefused
from ferrule.kinds.function.tools import tool_of
from ferrule.orchestrator import Orchestrator
from ferrule.testing import ScriptedModel


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": list(steps)})


def search_step(number: int, query: str, **more: Any) -> dict[str, Any]:
    step = {"id": number, "description": f"search {query}", "tool_type": "search_web", "parameters": {"query": query}}
    return {**step, **more}


def search(who: str, source: str = "tools") -> Tool:
    @tool(name="search_web", read_only=True, cacheable=True, tags=["search", "web"])
    async def search_web(query: str) -> str:
        """Search the web for something."""
        return f"{who} knows of {query}"

    return replace(tool_of(search_web), source=source)


def test_the_graph_has_the_nodes_and_edges_of_the_design():
    pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')
    from ferrule.workflow.graph import build_graph

    drawn = build_graph().compile().get_graph()
    edges = {(edge.source, edge.target) for edge in drawn.edges}
    assert set(drawn.nodes) == {"__start__", "planning", "execution", "verification", "synthesis", "__end__"}
    assert edges == {
        ("__start__", "planning"),
        ("planning", "execution"),
        ("execution", "verification"),
        ("execution", "execution"),
        ("execution", "synthesis"),
        ("verification", "execution"),
        ("verification", "planning"),
        ("synthesis", "__end__"),
    }


async def test_small_talk_ends_at_the_fast_path_and_the_rest_goes_on_to_the_cache_and_the_workflow(workflow):
    model = ScriptedModel([plan(search_step(1, "tea")), plan(search_step(1, "the time"))])
    async with UnifiedToolLibrary() as library:
        library.register(search("A"))
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            hello = await orchestrator.process_task("hello")
            asked = await orchestrator.process_task("Who knows of tea?")
            again = await orchestrator.process_task(" Who knows\tof tea? ")
            about_time = await orchestrator.process_task("What time is it now?")
            history = await orchestrator.process_task("what did I ask")
    assert [r.strategy for r in (hello, asked, history)] == ["fast_path", "plan", "fast_path"]
    assert (asked.cached, again.cached, about_time.cached) == (False, True, False) and again.answer == asked.answer
    assert hello.plan is None and "What time is it now?" in history.answer and len(model.requests) == 2


async def test_a_step_goes_to_the_hub_which_asks_all_who_know_and_its_result_is_formatted_and_verified(workflow):
    seen: list[Any] = []
    long_answer = "B has much to say. " * 60
    async with UnifiedToolLibrary() as library:
        library.register(search("A"), search(long_answer, "mcps"))
        model = ScriptedModel([plan(search_step(1, "tea"))])
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            done = await orchestrator.process_task("Who knows of tea?", on_event=seen.append)
    [step] = done.steps
    assert "A knows of tea" in step.result and "B has much to say." in step.result
    assert len(step.result) <= 500 < len(long_answer) and step.result.endswith("say.")
    assert step.verification is not None and step.verification.verified
    assert [type(event) for event in seen[1:]] == [PlanCreated, StepEnded]
    assert done.answer == step.result and done.tool_usage_summary["total_calls"] == 2


async def test_a_step_without_a_tool_is_thought_out_with_what_was_found_before(workflow):
    steps = [search_step(1, "tea"), {"id": 2, "description": "conclude", "tool_type": NO_TOOL, "dependencies": [1]}]
    model = ScriptedModel([plan(*steps), "Tea is known.", "Yes [1][2]."])
    async with UnifiedToolLibrary() as library:
        library.register(search("A"))
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            done = await orchestrator.process_task("Is tea known?")
    assert "A knows of tea" in str(model.requests[1].messages) and done.steps[1].result == "Tea is known."
    assert "Tea is known." in str(model.requests[2].messages) and done.answer == "Yes [1][2]."


async def test_by_name_then_by_capability_then_by_thinking(workflow):
    @tool(read_only=True, tags=["search"])
    async def search_web(query: str) -> str:
        """Search the web."""
        raise RuntimeError("offline")

    @tool(read_only=True, tags=["search"])
    async def search_books(query: str) -> str:
        """Search books."""
        if query == "tea":
            return "The Book of Tea"
        raise RuntimeError("no such book")

    steps = [search_step(1, "tea"), search_step(2, "coffee")]
    model = ScriptedModel([plan(*steps), "Coffee is a drink.", "There is a book of tea."])
    async with UnifiedToolLibrary() as library:
        library.register(search_web, search_books)
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            done = await orchestrator.process_task("Search")
    assert [[a.level for a in step.attempts] for step in done.steps] == [
        ["name", "capability"],
        ["name", "capability", "reasoning"],
    ]
    assert [step.result for step in done.steps] == ["The Book of Tea", "Coffee is a drink."]
    assert [step.success for step in done.steps] == [True, True]
    assert "(from no tool, because search_web failed: it may be wrong): Coffee" in str(model.requests[-1].messages)
    assert "Not from search_web, which failed" in done.answer


async def test_where_nothing_succeeds_the_answer_says_so(workflow):
    model = ScriptedModel([plan(search_step(1, "茶")), ModelRefused("no"), ModelRefused("no")])
    async with UnifiedToolLibrary() as library:

        @tool(read_only=True)
        async def search_web(query: str) -> str:
            """Search the web."""
            raise RuntimeError("offline")

        library.register(search_web)
        async with Orchestrator(library, model, workflow=workflow, strategy="plan") as orchestrator:
            done = await orchestrator.process_task("茶是什么？")
    assert done.state is AgentState.STOPPED and done.answer.startswith("无法生成答案") and done.errors
