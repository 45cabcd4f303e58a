"""`calculate` is another name of the calculator, which models are shown under one name alone."""

from ferrule import ToolEngine, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.testing import ScriptedModel


async def test_both_names_compute():
    async with ToolEngine() as engine:
        for name in ("calculate", "calculator"):
            assert (await engine.execute(name, {"expression": "0.1 + 0.2"})).output == {"result": 0.3}


async def test_models_are_shown_one_of_them_and_may_call_either():
    model = ScriptedModel([{"name": "calculate", "arguments": {"expression": "6 * 7"}}, "It is 42."])
    async with UnifiedToolLibrary() as library:
        shown = [schema["function"]["name"] for schema in library.schemas()]
        answer = await Agent(library, model).run("What is 6 * 7?")
    assert "calculator" in shown and "calculate" not in shown
    assert answer.steps[0].is_success and answer.steps[0].text == "42"


async def test_a_tool_of_that_very_name_comes_first():
    @tool
    async def calculate(expression: str) -> str:
        return "mine"

    async with ToolEngine() as engine:
        engine.register(calculate)
        assert (await engine.execute("calculate", {"expression": "1"})).output == {"result": "mine"}
        engine.registry.remove("calculate")
        assert (await engine.execute("calculate", {"expression": "1"})).output == {"result": 1}


async def test_an_alias_of_a_disabled_tool_says_so():
    async with ToolEngine() as engine:
        engine.registry.disable("calculator")
        result = await engine.execute("calculate", {"expression": "1"})
    assert result.error_type == "tool_not_found" and "calculator" in str(result.error)
