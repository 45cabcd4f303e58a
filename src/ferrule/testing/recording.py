"""Recordings: what a real model answered once, replayed without it.

A recording is a JSON Lines file, one exchange a line: a key made of the request, the request, the reply. Of the tools
it keeps only digests. Secrets are taken out before anything is written or compared, so a recording can be committed,
and one made with another key still fits.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ferrule.content import encode_json
from ferrule.errors import SetupError
from ferrule.messages import ToolCall, Usage
from ferrule.models.model import Model, ModelReply, ModelRequest, TextSink
from ferrule.redaction import Redaction
from ferrule.testing.differences import difference
from ferrule.testing.pieces import stream_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One line of a recording."""

    key: str
    request: dict[str, Any]
    reply: dict[str, Any]


class RecordedModel:
    """Replays a recording. The same request asked several times gets its replies in the order they came."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._exchanges = _read(self._path)
        self._name = f"recorded:{self._path.stem}"
        self._redaction = Redaction()
        self._left: dict[str, list[Exchange]] = defaultdict(list)
        for exchange in self._exchanges:
            self._left[exchange.key].append(exchange)

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        reply = self.recorded_reply(request)
        if reply is None:
            raise SetupError(f"{self._path} has no reply to this request. {self._what_differs(request)}")
        stream_text(reply.text, on_text)
        return reply

    def recorded_reply(self, request: ModelRequest) -> ModelReply | None:
        """The next reply to this request, if there is one."""
        left = self._left.get(key_of(recorded_request(request, self._redaction)))
        return reply_of(left.pop(0).reply) if left else None

    def _what_differs(self, request: ModelRequest) -> str:
        asked = recorded_request(request, self._redaction)
        told = difference(asked, [exchange.request for exchange in self._exchanges])
        return f"{told} Make it anew with RecordingModel(model, {str(self._path)!r})."


class RecordingModel:
    """Asks a model and records what it answers.

    `mode="new"` writes the file anew; `mode="auto"` replays what is in it and asks only for what is missing.
    """

    def __init__(self, model: Model, path: str | Path, mode: Literal["new", "auto"] = "new") -> None:
        self.model = model
        self._path = Path(path)
        self._redaction = Redaction()
        self._recorded = RecordedModel(self._path) if mode == "auto" and self._path.exists() else None
        self._begun = self._recorded is not None

    @property
    def name(self) -> str:
        return self.model.name

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        if self._recorded is not None and (known := self._recorded.recorded_reply(request)) is not None:
            stream_text(known.text, on_text)
            return known
        asked = recorded_request(request, self._redaction)  # before the answer: the messages are the caller's, and grow
        reply = await self.model.generate(request, on_text)
        self._write(Exchange(key=key_of(asked), request=asked, reply=self._redaction.clean(asdict(reply))))
        return reply

    def _write(self, exchange: Exchange) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Only the first answer replaces an earlier recording: a model that gives none must not cost it.
        with self._path.open("ab" if self._begun else "wb") as file:
            file.write(encode_json(asdict(exchange)) + b"\n")
        self._begun = True


def recorded_request(request: ModelRequest, redaction: Redaction) -> dict[str, Any]:
    """What of a request decides about its reply."""
    settings = {
        "tool_choice": request.tool_choice,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
    }
    return {
        "messages": redaction.clean(list(request.messages)),
        "tools": {_name(schema): _digest(schema) for schema in request.tools},
        "answer_schema": None if request.answer_schema is None else _digest(request.answer_schema),
        **settings,
    }


def key_of(request: dict[str, Any]) -> str:
    return _digest(request)


def reply_of(recorded: dict[str, Any]) -> ModelReply:
    calls = tuple(ToolCall(**call) for call in recorded["tool_calls"])
    return ModelReply(**{**recorded, "tool_calls": calls, "usage": Usage(**recorded["usage"])})


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("function", schema).get("name"))


def _digest(value: Any) -> str:
    return sha256(encode_json(value, sort_keys=True)).hexdigest()[:16]


def _read(path: Path) -> list[Exchange]:
    try:
        lines = path.read_bytes().splitlines()  # of bytes: a text may hold separators that only a text is split at
    except FileNotFoundError:
        raise SetupError(
            f"There is no recording at {path}. Make it with RecordingModel(model, {str(path)!r})."
        ) from None
    exchanges = []
    for number, line in enumerate(lines, start=1):
        try:
            exchanges.append(Exchange(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SetupError(f"{path}:{number}: this is no line of a recording ({error}). Make it anew.") from None
    return exchanges
