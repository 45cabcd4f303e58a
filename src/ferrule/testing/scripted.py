"""A model that does what a script says, without thinking and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ferrule.errors import SetupError
from ferrule.messages import ToolCall, Usage, text_of_message
from ferrule.models.arguments import read_call
from ferrule.models.model import ModelReply, ModelRequest, TextSink
from ferrule.testing.pieces import stream_text

CallTurn: TypeAlias = Mapping[str, Any]
"""`{"name": …, "arguments": {…}}`, and an `id` if it matters. Arguments may be text, as a model would write them."""
SaidTurn: TypeAlias = str | CallTurn | Sequence[CallTurn] | ModelReply | BaseException | type[BaseException]
Turn: TypeAlias = SaidTurn | Callable[[ModelRequest], SaidTurn]
"""A text, a call, several calls, a whole reply, an exception to raise, or a function that makes one of these."""

_ONE_REQUEST = Usage(requests=1)
_CALL_KEYS = frozenset({"name", "arguments", "id"})


class ScriptedModel:
    """Answers each request with the next turn of its script, and keeps the requests.

    With `loop=True` the last turn is repeated without end, as a stubborn model would.
    """

    def __init__(self, turns: Iterable[Any], name: str = "scripted", *, loop: bool = False) -> None:
        """`turns` are of type `Turn`; type checkers take a list of mixed ones for a list of objects."""
        self._turns = [_prepared(turn) for turn in turns]
        self._name = name
        self._loop = loop
        self._calls = 0
        self.requests: list[ModelRequest] = []
        """Everything it was asked, as it was when it was asked."""
        if loop and not self._turns:
            raise SetupError("A script that loops needs at least one turn.")

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        turn = self._next_turn(request)
        self.requests.append(_as_it_is(request))
        if not isinstance(turn, ModelReply):
            if callable(turn) and not isinstance(turn, type):
                turn = _prepared(turn(request))
            if not isinstance(turn, ModelReply):
                raise turn
        if on_text is not None:
            stream_text(turn.text, on_text)
        return self._with_ids(turn) if turn.tool_calls else turn

    def _next_turn(self, request: ModelRequest) -> Any:
        asked = len(self.requests)
        if asked < len(self._turns):
            return self._turns[asked]
        if self._loop:
            return self._turns[-1]
        last = (
            f"{request.messages[-1].get('role')}: {text_of_message(request.messages[-1])}" if request.messages else ""
        )
        raise SetupError(
            f"The script of {self._name!r} has {len(self._turns)} turns, and turn {asked + 1} was asked for. "
            f"Add a turn, or give loop=True to repeat the last one. The last message was {last[:200]!r}."
        )

    def _with_ids(self, reply: ModelReply) -> ModelReply:
        calls = []
        for call in reply.tool_calls:
            self._calls += 1
            calls.append(call if call.id else _with_id(call, f"call_{self._calls}"))
        return ModelReply(
            text=reply.text,
            tool_calls=tuple(calls),
            usage=reply.usage,
            finish_reason=reply.finish_reason,
            reasoning=reply.reasoning,
        )


def _as_it_is(request: ModelRequest) -> ModelRequest:
    """The request with messages of its own: those are the caller's list, and grow.

    Here and below values are built by hand: `dataclasses.replace` takes three times as long, and benches count.
    """
    if type(request.messages) is tuple:
        return request
    return ModelRequest(
        messages=tuple(request.messages),
        tools=request.tools,
        tool_choice=request.tool_choice,
        answer_schema=request.answer_schema,
        temperature=request.temperature,
        max_tokens=request.max_tokens,
    )


def _with_id(call: ToolCall, id: str) -> ToolCall:
    return ToolCall(name=call.name, arguments=call.arguments, id=id, error=call.error, raw=call.raw)


def _prepared(turn: Any) -> Any:
    """A turn as a reply, where that can be said before it is asked for."""
    if isinstance(turn, str):
        return ModelReply(text=turn, usage=_ONE_REQUEST)
    if isinstance(turn, Mapping):
        return _calling([turn])
    if isinstance(turn, Sequence):
        return _calling(turn)
    if isinstance(turn, (ModelReply, BaseException)) or callable(turn):
        return turn
    raise SetupError(
        f"{turn!r} is no turn of a script. Write a text, a call as {{'name': …, 'arguments': {{…}}}}, a list of calls, "
        "a ModelReply, an exception, or a function of the request."
    )


def _calling(calls: Sequence[Any]) -> ModelReply:
    read = tuple(_read(call) for call in calls)
    return ModelReply(tool_calls=read, usage=_ONE_REQUEST, finish_reason="tool_calls" if read else "stop")


def _read(call: Any) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, Mapping) or "name" not in call or not call.keys() <= _CALL_KEYS:
        raise SetupError(f"{call!r} is no call of a script. Write {{'name': …, 'arguments': {{…}}}}.")
    arguments = call.get("arguments", {})
    read = read_call(str(call["name"]), dict(arguments) if isinstance(arguments, Mapping) else arguments)
    return _with_id(read, str(call.get("id", "")))
