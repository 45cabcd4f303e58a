"""Small talk is answered at once: no model, no run."""

import pytest

from ferrule import SetupError, ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.orchestrator import Orchestrator
from ferrule.policy.policy import Policy, Rule
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator


@tool(read_only=True, category="weather")
async def forecast(city: str) -> str:
    """Tell the weather of tomorrow. Only for cities."""
    return f"sunny in {city}"


async def test_a_greeting_needs_no_model():
    model = ScriptedModel([])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model) as orchestrator:
        done = await orchestrator.process_task("hello there!")
        chinese = await orchestrator.process_task("你好")
        assert done["answer"].startswith("Hello! I am Ferrule") and done.strategy == "fast_path"
        assert "我是 Ferrule" in chinese.answer
        assert done.state is AgentState.FINISHED and done.run_id == "" and done.usage.requests == 0
        assert model.requests == [] and await library.engine.store.list_streams("run:") == {}


async def test_what_can_you_do_is_told_from_the_tools_that_are_there():
    async with UnifiedToolLibrary() as library, Orchestrator(library, ScriptedModel([])) as orchestrator:
        before = await orchestrator.process_task("what can you do?")
        library.register(forecast)
        after = await orchestrator.process_task("你能做什么？")
        assert "\n- calculator: 计算算式。\n" in after.answer and "运行 Python 脚本" in after.answer
        assert "calculator" in before.answer and "forecast" not in before.answer
        assert "\n- forecast: Tell the weather of tomorrow.\n" in after.answer
        assert "“what is 15% of 80?”" in before.answer and "“80的15%是多少？”" in after.answer
        assert after.answer.startswith("我是 Ferrule，可以用这") and "Only for cities" not in after.answer


async def test_many_tools_are_told_by_their_names_in_groups():
    def tool_of(number):
        async def made():
            return number

        return tool(name=f"t{number}", description="Counts.", category="counting")(made)

    async with UnifiedToolLibrary() as library, Orchestrator(library, ScriptedModel([])) as orchestrator:
        library.register(*map(tool_of, range(20)))
        answer = (await orchestrator.process_task("which tools do you have?")).answer
        assert "- counting: t0, t1, t2, t3, t4, t5, t6, t7 and 12 more" in answer and "Counts." not in answer


async def test_what_did_i_ask_is_told_from_memory():
    model = ScriptedModel(["Paris.", "Rome."])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        nothing = await orchestrator.process_task("what did I ask?")
        await orchestrator.process_task("The capital of France?")
        await orchestrator.process_task("意大利的首都？")
        said = [
            await orchestrator.process_task(q)
            for q in ("what did I ask?", "what have I asked?", "上一个问题", "what did you say?")
        ]
        assert nothing.answer == "You have not asked anything yet in this conversation."
        assert said[0].answer == "Your last question was: 意大利的首都？"
        assert said[1].answer == "So far you have asked:\n1. The capital of France?\n2. 意大利的首都？"
        assert said[2].answer == "你的上一个问题是：意大利的首都？" and said[3].answer == "My last answer was: Rome."
        assert len(model.requests) == 2


async def test_a_greeting_with_a_question_is_answered_by_the_model():
    model = ScriptedModel(["It is 4."])
    async with open_orchestrator([], model) as orchestrator:
        done = await orchestrator.process_task("hi, what is 2+2?", strategy="direct")
        assert done.answer == "It is 4." and len(model.requests) == 1


async def test_an_empty_question_is_refused():
    async with open_orchestrator([], ScriptedModel([])) as orchestrator:
        with pytest.raises(SetupError, match="question is empty"):
            await orchestrator.process_task("  ")


async def test_tools_that_may_not_be_called_are_not_named():
    @tool
    def salary(name: str) -> str:
        """What somebody earns."""
        return "much"

    policy = Policy(rules=[Rule(verdict="deny", tool="salary")])
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False, tools_directory="none")) as library:
        library.register(salary)
        async with Orchestrator(library, "offline", policy=policy) as orchestrator:
            assert "salary" not in (await orchestrator.process_task("which tools do you have?")).answer
        async with Orchestrator(library, "offline", tools=[]) as orchestrator:
            assert "salary" not in (await orchestrator.process_task("which tools do you have?")).answer
        async with Orchestrator(library, "offline") as orchestrator:
            assert "salary" in (await orchestrator.process_task("which tools do you have?")).answer
