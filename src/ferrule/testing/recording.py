"""Recordings: the replies of a real model, replayed without it.

A recording is a JSON Lines file with one exchange per line: a key made of the request, the request, the reply. Tools
are stored as digests only. Secrets are removed before anything is written or compared, so a recording can be
committed, and one made with another key still matches.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from ferrule.core.content import as_text, encode_json
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import Model, ModelReply, ModelRequest, ModelWrapper, TextSink
from ferrule.core.secrets import Redaction
from ferrule.errors import SetupError
from ferrule.testing.scripted import stream_text

_MAX_MESSAGE = 160
"""Characters of a message in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """One line of a recording."""

    key: str
    request: dict[str, Any]
    reply: dict[str, Any]


class RecordedModel:
    """Replays a recording. A request that was recorded several times gets its replies in their order."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._exchanges = _read_recording(self._path)
        self._name = f"recorded:{self._path.stem}"
        self._redaction = Redaction()
        self._remaining: dict[str, list[RecordedExchange]] = defaultdict(list)
        for exchange in self._exchanges:
            self._remaining[exchange.key].append(exchange)

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        reply = self.take_recorded_reply(request)
        if reply is None:
            fields = _request_fields(request, self._redaction)
            difference = _describe_difference(fields, [exchange.request for exchange in self._exchanges])
            raise SetupError(
                f"{self._path} has no reply to this request. {difference} "
                f"Record it again with RecordingModel(model, {str(self._path)!r})."
            )
        stream_text(reply.text, on_text)
        return reply

    def take_recorded_reply(self, request: ModelRequest) -> ModelReply | None:
        """Return the next recorded reply to this request, if any."""
        exchanges = self._remaining.get(_digest(_request_fields(request, self._redaction)))
        if not exchanges:
            return None
        recorded = exchanges.pop(0).reply
        calls = tuple(ToolCall(**call) for call in recorded["tool_calls"])
        return ModelReply(**{**recorded, "tool_calls": calls, "usage": Usage(**recorded["usage"])})


class RecordingModel(ModelWrapper):
    """Asks a model and records its replies.

    `mode="new"` replaces the file; `mode="auto"` replays what it contains and asks only for what is missing.
    """

    def __init__(self, model: Model, path: str | Path, mode: Literal["new", "auto"] = "new") -> None:
        super().__init__(model)
        self._path = Path(path)
        self._redaction = Redaction()
        self._recorded = RecordedModel(self._path) if mode == "auto" and self._path.exists() else None
        self._appends = self._recorded is not None

    @property
    def can_end_reply(self) -> bool:
        """Return False: the whole reply is recorded."""
        return False

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        if self._recorded is not None and (reply := self._recorded.take_recorded_reply(request)) is not None:
            stream_text(reply.text, on_text)
            return reply
        # Before the model answers: the list of messages is the caller's, and grows.
        fields = _request_fields(request, self._redaction)
        reply = await self.model.generate(request, on_text)
        exchange = RecordedExchange(key=_digest(fields), request=fields, reply=self._redaction.redact(asdict(reply)))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The file is replaced with the first reply, and not before: a model that fails must not destroy a recording.
        with self._path.open("ab" if self._appends else "wb") as file:
            file.write(encode_json(asdict(exchange)) + b"\n")
        self._appends = True
        return reply


def _request_fields(request: ModelRequest, redaction: Redaction) -> dict[str, Any]:
    """Return the parts of a request that its reply depends on."""
    return {
        "messages": redaction.redact(list(request.messages)),
        "tools": {str(schema.get("function", schema).get("name")): _digest(schema) for schema in request.tools},
        "answer_schema": None if request.answer_schema is None else _digest(request.answer_schema),
        "tool_choice": request.tool_choice,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
    }


def _digest(value: Any) -> str:
    return sha256(encode_json(value, sort_keys=True)).hexdigest()[:16]


def _read_recording(path: Path) -> list[RecordedExchange]:
    try:
        lines = path.read_bytes().splitlines()  # of bytes: str.splitlines also splits at characters inside texts
    except FileNotFoundError:
        raise SetupError(
            f"There is no recording at {path}. Make it with RecordingModel(model, {str(path)!r})."
        ) from None
    exchanges = []
    for number, line in enumerate(lines, start=1):
        try:
            exchanges.append(RecordedExchange(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SetupError(
                f"{path}:{number}: this is not a line of a recording ({error}). Record it again."
            ) from None
    return exchanges


# How a request differs from the recorded ones, for the error


def _describe_difference(request: dict[str, Any], recorded: Sequence[dict[str, Any]]) -> str:
    """Describe the difference from the most similar recorded request in a sentence or two."""
    if not recorded:
        return "It is empty."
    if request in recorded:
        return f"It has this request {recorded.count(request)} times, and it was made once more."
    nearest = max(recorded, key=lambda other: _similarity(request, other))
    differences = [
        *_message_differences(request["messages"], nearest["messages"]),
        *_tool_differences(request["tools"], nearest["tools"]),
        *(
            f"{name} is {request[name]!r} and was {nearest.get(name)!r}."
            for name in request
            if name not in ("messages", "tools") and request[name] != nearest.get(name)
        ),
    ]
    return f"Compared with request {recorded.index(nearest) + 1} of {len(recorded)}: {' '.join(differences)}"


def _similarity(request: dict[str, Any], other: dict[str, Any]) -> tuple[int, int, int]:
    """Compare by equal messages from the start, then by length of the conversation, then by the other fields."""
    equal = _index_of_difference(request["messages"], other["messages"])
    rest = sum(request[name] == other.get(name) for name in request)
    return equal, -abs(len(request["messages"]) - len(other["messages"])), rest


def _index_of_difference(messages: list[Any], others: list[Any]) -> int:
    return next((i for i, (a, b) in enumerate(zip_longest(messages, others)) if a != b), len(messages))


def _message_differences(messages: list[Any], others: list[Any]) -> list[str]:
    i = _index_of_difference(messages, others)
    if i == len(messages) == len(others):
        return []
    if i >= len(others):
        return [f"there are {len(messages) - i} messages more, from {_shorten_message(messages[i])}."]
    if i >= len(messages):
        return [f"there are {len(others) - i} messages less, from {_shorten_message(others[i])}."]
    return [
        f"message {i + 1} is {_excerpt_at_difference(messages[i], others[i])} "
        f"and was {_excerpt_at_difference(others[i], messages[i])}."
    ]


def _tool_differences(tools: dict[str, str], others: dict[str, str]) -> list[str]:
    if tools == others:
        return []
    groups = {
        "new": sorted(tools.keys() - others.keys()),
        "missing": sorted(others.keys() - tools.keys()),
        "changed": sorted(name for name in tools.keys() & others.keys() if tools[name] != others[name]),
    }
    parts = [f"{', '.join(names)} {group}" for group, names in groups.items() if names]
    return [f"tools: {'; '.join(parts)}."]


def _excerpt_at_difference(message: Any, other: Any) -> str:
    """Quote the message from a little before the first difference."""
    text, compared = as_text(message), as_text(other)
    start = max(0, next((i for i, (a, b) in enumerate(zip(text, compared, strict=False)) if a != b), 0) - 30)
    return _shorten_message(text[start:], "…" if start else "")


def _shorten_message(message: Any, prefix: str = "") -> str:
    text = as_text(message)
    return repr(prefix + (text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"))
