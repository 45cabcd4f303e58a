"""A model that follows a script, without thinking and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ferrule.core.messages import ToolCall, Usage, decode_tool_call, text_of_message
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError

ScriptedCall: TypeAlias = Mapping[str, Any]
"""`{"name": …, "arguments": {…}}`, and an `id` if it matters. Arguments may be text, as a model would write them."""
FixedTurn: TypeAlias = str | ScriptedCall | Sequence[ScriptedCall] | ModelReply | BaseException | type[BaseException]
ScriptedTurn: TypeAlias = FixedTurn | Callable[[ModelRequest], FixedTurn]
"""A text, a call, several calls, a whole reply, an exception to raise, or a function that returns one of these."""

_USAGE_OF_ONE_REQUEST = Usage(requests=1)
_CALL_KEYS = frozenset({"name", "arguments", "id"})
_WORD = lazy_pattern(r"\s*\S+\s*|\s+")


class ScriptedModel:
    """Answers each request with the next turn of its script, and stores the requests.

    With `loop=True` the last turn is repeated without end, like a model that does not change its mind.
    """

    def __init__(self, turns: Iterable[Any], name: str = "scripted", *, loop: bool = False) -> None:
        """Take `turns` of the type `ScriptedTurn`; type checkers infer a list of objects for mixed ones."""
        self._turns = [_prepare_turn(turn) for turn in turns]
        self._name = name
        self._loop = loop
        self._calls = 0
        self.requests: list[ModelRequest] = []
        """Every request, with its messages at that time."""
        if loop and not self._turns:
            raise SetupError("A script that loops needs at least one turn.")

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        turn = self._next_turn(request)
        self.requests.append(_copy_request(request))
        if not isinstance(turn, ModelReply):
            if callable(turn) and not isinstance(turn, type):
                turn = _prepare_turn(turn(request))
            if not isinstance(turn, ModelReply):
                raise turn
        stream_text(turn.text, on_text)
        return self._with_ids(turn) if turn.tool_calls else turn

    def _next_turn(self, request: ModelRequest) -> Any:
        index = len(self.requests)
        if index < len(self._turns):
            return self._turns[index]
        if self._loop:
            return self._turns[-1]
        last = (
            f"{request.messages[-1].get('role')}: {text_of_message(request.messages[-1])}" if request.messages else ""
        )
        raise SetupError(
            f"The script of {self._name!r} has {len(self._turns)} turns, and turn {index + 1} was requested. "
            f"Add a turn, or use loop=True to repeat the last one. The last message was {last[:200]!r}."
        )

    def _with_ids(self, reply: ModelReply) -> ModelReply:
        calls = []
        for call in reply.tool_calls:
            self._calls += 1
            calls.append(call if call.id else replace(call, id=f"call_{self._calls}"))
        return replace(reply, tool_calls=tuple(calls))


def stream_text(text: str, on_text: TextSink | None) -> None:
    """Pass a text on word by word, as models stream it."""
    if on_text is not None:
        for word in _WORD.findall(text):
            on_text(word)


def _copy_request(request: ModelRequest) -> ModelRequest:
    """Copy the request with its own list of messages, because the list of the caller grows."""
    if type(request.messages) is tuple:
        return request
    return replace(request, messages=tuple(request.messages))


def _prepare_turn(turn: Any) -> Any:
    """Turn a text or calls into a reply. Replies, exceptions and functions stay as they are."""
    if isinstance(turn, str):
        return ModelReply(text=turn, usage=_USAGE_OF_ONE_REQUEST)
    if isinstance(turn, Mapping):
        return _reply_with_calls([turn])
    if isinstance(turn, Sequence):
        return _reply_with_calls(turn)
    if isinstance(turn, (ModelReply, BaseException)) or callable(turn):
        return turn
    raise SetupError(
        f"{turn!r} is not a turn of a script. Write a text, a call as {{'name': …, 'arguments': {{…}}}}, a list of "
        "calls, a ModelReply, an exception, or a function of the request."
    )


def _reply_with_calls(calls: Sequence[Any]) -> ModelReply:
    decoded = tuple(_decode_call(call) for call in calls)
    return ModelReply(
        tool_calls=decoded, usage=_USAGE_OF_ONE_REQUEST, finish_reason="tool_calls" if decoded else "stop"
    )


def _decode_call(call: Any) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, Mapping) or "name" not in call or not call.keys() <= _CALL_KEYS:
        raise SetupError(f"{call!r} is not a call of a script. Write {{'name': …, 'arguments': {{…}}}}.")
    arguments = call.get("arguments", {})
    decoded = decode_tool_call(str(call["name"]), dict(arguments) if isinstance(arguments, Mapping) else arguments)
    return replace(decoded, id=str(call.get("id", "")))
