from ferrule.kinds.builtin import EchoExecutor
from tests.kinds.invocations import invocation


async def test_a_message_comes_back():
    assert await EchoExecutor().execute(invocation({"message": "你好"})) == {"message": "你好"}


async def test_whatever_else_is_given_comes_back_too():
    assert await EchoExecutor().execute(invocation({"a": 1, "b": [2]})) == {"a": 1, "b": [2]}


async def test_without_arguments_nothing_comes_back():
    assert await EchoExecutor().execute(invocation({})) == {}
