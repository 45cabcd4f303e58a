"""Which schemas are understood, and which names find them."""

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.core.names import encode_model_name
from ferrule.parsing import KnownTools, parse_tool_calls
from tests.parsing.schemas import TEXT, schema


@pytest.mark.parametrize(
    "described",
    [
        {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": TEXT}}}},
        {"name": "look", "parameters": {"properties": {"at": TEXT}}},
        {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {"at": TEXT}}},
    ],
)
def test_schemas_of_openai_and_anthropic_and_bare_ones_are_understood(described):
    [call] = parse_tool_calls('look("the sky")', [described])
    assert (call.name, call.arguments) == ("look", {"at": "the sky"})


@pytest.mark.parametrize(
    "name", ["math.factorial", "files/read", "网页导航器", "get-weather", "a.very.long." + "name" * 20]
)
def test_a_tool_is_found_by_its_source_name_and_by_its_model_name(name):
    encoded = encode_model_name(name)
    tools = KnownTools([schema(encoded, at=TEXT)])
    for spelling in (name, encoded, f"functions.{name}"):
        [call] = parse_tool_calls(f'<tool_call>{{"name": "{spelling}", "arguments": {{"at": "x"}}}}</tool_call>', tools)
        assert (call.name, call.arguments) == (encoded, {"at": "x"})


def test_dotted_and_chinese_names_are_read_in_python_too():
    tools = [schema(encode_model_name(name), number={"type": "integer"}) for name in ("math.factorial", "计算")]
    calls = parse_tool_calls("[math.factorial(number=5), 计算(number=6)]", tools)
    assert [call.name for call in calls] == [encode_model_name("math.factorial"), encode_model_name("计算")]


async def test_the_schemas_of_a_library_are_what_is_expected():
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with UnifiedToolLibrary() as library:
        library.register(add)
        [call] = parse_tool_calls("Sure:\n\n```python\nadd(1, b=2)\n```", library.schemas())
        result = await library.execute_tool(call.name, parameters=call.arguments)
    assert result.output == {"result": 3}
