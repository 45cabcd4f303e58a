"""Models that decide on a prompt instead of calling tools: the same loop."""

import json

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState
from ferrule.testing import ScriptedModel
from tests.support.virtual_time import in_virtual_time


@tool(tags=["stars"])
async def scrape(selector: str) -> str:
    """Read an element of the page."""
    if selector != "a.stars":
        raise ValueError(f"Selector {selector!r} not found")
    return "28"


@tool(tags=["stars"], read_only=True)
async def ask_api(name: str) -> str:
    """Ask the API for the stars of a repository."""
    return "28 by the API"


def decide(action_type: str, **said: object) -> str:
    return json.dumps({"action_type": action_type, **said})


async def test_a_decision_to_execute_a_tool_and_one_to_complete():
    script = [
        decide("execute_tool", tool_id="scrape", action="scrape", parameters={"selector": "a.stars"}),
        decide("complete", reasoning="There are 28 stars."),
    ]
    model = ScriptedModel(script)
    answer = await Agent([scrape], model, style="decisions").run("How many stars?")
    assert answer.text == "There are 28 stars." and answer.steps[0].text == "28"
    prompt = str(model.requests[1].messages[-1]["content"])
    assert "How many stars?" in prompt and "28" in prompt and "execute_tool" in prompt


async def test_a_failure_is_in_the_next_prompt_and_the_same_call_is_not_made_again():
    wrong = decide("execute_tool", tool_id="scrape", parameters={"selector": "a.social-count"})
    right = decide("execute_tool", tool_id="scrape", parameters={"selector": "a.stars"})
    model = ScriptedModel([wrong, wrong, right, decide("complete", reasoning="28")])
    answer = await Agent([scrape], model, style="decisions").run("星标有多少个？")
    assert [step.error_type for step in answer.steps] == ["execution_error", "known_failure", None]
    prompt = str(model.requests[1].messages[-1]["content"])
    assert "a.social-count" in prompt and "失败" in prompt


async def test_a_tool_whose_call_was_refused_is_not_offered_in_the_next_decision():
    wrong = decide("execute_tool", tool_id="scrape", parameters={"selector": "a.social-count"})
    other = decide("execute_tool", tool_id="ask_api", parameters={"name": "x"})
    model = ScriptedModel([wrong, wrong, other, decide("complete")])
    answer = await Agent([scrape, ask_api], model, style="decisions").run("How many stars?")
    assert answer.is_finished and [step.error_type for step in answer.steps] == [
        "execution_error",
        "known_failure",
        None,
    ]
    offered = ["- scrape: Read" in str(request.messages[-1]["content"]) for request in model.requests]
    assert offered == [True, True, False, True]


async def test_replan_and_switch_tool_are_answered_and_the_run_goes_on():
    wrong = [decide("execute_tool", tool_id="scrape", parameters={"selector": f"a.s{n}"}) for n in range(3)]
    script = [
        *wrong,
        decide("switch_tool", reasoning="the page does not help"),
        decide("replan", reasoning="ask the API instead"),
        decide("execute_tool", tool_id="ask_api", parameters={"name": "ferrule"}),
        decide("complete", reasoning="28"),
    ]
    model = ScriptedModel(script)
    answer = await Agent([scrape, ask_api], model, style="decisions").run("How many stars?")
    assert answer.is_finished and answer.steps[-1].text == "28 by the API"
    assert "ask_api" in str(model.requests[4].messages[-1]["content"])


async def test_what_is_no_decision_is_asked_for_again():
    async with UnifiedToolLibrary() as library:
        model = ScriptedModel(["Well, let me see.", decide("complete", reasoning="ok")])
        answer = await Agent(library, model, style="decisions").run("Go")
        assert answer.text == "ok" and "no decision" in str(model.requests[1].messages[-1]["content"])
        answer = await Agent(library, ScriptedModel(["hm"] * 3), style="decisions").run("Go")
        assert answer.state is AgentState.STOPPED


async def test_a_decision_that_the_task_is_complete_answers_with_what_was_found():
    script = [
        decide("execute_tool", tool_id="scrape", parameters={"selector": "a.stars"}),
        decide("complete", reasoning="The task is done."),
    ]
    answer = await Agent([scrape], ScriptedModel(script), style="decisions").run("How many stars?")
    assert answer.text == "The task is done.\n\n28"


@in_virtual_time  # the failed call is repeated after seconds
async def test_adjustments_are_noted_and_shown_in_the_next_prompt():
    @tool(read_only=True)
    async def wait_for_page(timeout: int) -> str:
        """Wait for a page."""
        raise TimeoutError("timeout: the page did not load in time")

    script = [decide("execute_tool", tool_id="wait_for_page", parameters={"timeout": 10}), decide("complete")]
    model = ScriptedModel(script)
    await Agent([wait_for_page], model, style="decisions").run("Wait for the page.")
    assert 'wait_for_page: try {"timeout":20} instead' in str(model.requests[1].messages[-1]["content"])
