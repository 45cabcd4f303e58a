from pathlib import Path

import pytest

import ferrule_tools
from ferrule.kinds.builtin import CalculatorExecutor, EchoExecutor
from ferrule.kinds.yaml.tool_file import ToolConfigLoader
from tests.kinds.invocations import invocation

SHIPPED = ToolConfigLoader(Path(ferrule_tools.__file__).parent).load()
TOOLS = {tool.id: tool for tool in SHIPPED.tools}


def test_every_shipped_file_loads():
    assert SHIPPED.errors == ()
    assert {tool.id: tool.handler for tool in SHIPPED.tools} == {
        "echo": "echo",
        "calculator": "calculator",
        "get_time": "function",
        "http_request": "http_request",
    }


def test_http_request_has_the_documented_parameters_and_promises_nothing():
    tool = TOOLS["http_request"]
    assert [p.name for p in tool.spec.parameters] == ["url", "method", "headers", "body", "timeout"]
    assert tool.spec.capabilities[0].schema["properties"]["method"]["enum"] == ["GET", "POST", "PUT", "DELETE", "PATCH"]
    assert not tool.spec.effects.repeatable


def test_echo_and_calculator_may_be_repeated_and_calculations_remembered():
    assert TOOLS["echo"].spec.effects.repeatable
    assert TOOLS["calculator"].spec.effects.cacheable


@pytest.mark.parametrize("example", TOOLS["calculator"].spec.capabilities[0].examples)
async def test_the_examples_of_the_calculator_work(example):
    assert isinstance((await CalculatorExecutor().execute(invocation(example)))["result"], (int, float))


@pytest.mark.parametrize(
    "arguments", [*TOOLS["echo"].spec.capabilities[0].examples, {"message": "你好"}, {"a": 1, "b": [2]}, {}]
)
async def test_whatever_echo_is_given_comes_back(arguments):
    assert await EchoExecutor().execute(invocation(arguments)) == arguments
