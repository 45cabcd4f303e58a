"""Reading the calls out of what a model wrote: one pass from left to right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ferrule.messages import Schema, ToolCall
from ferrule.parsing.found import Found
from ferrule.parsing.known import KnownTools
from ferrule.parsing.prose import Prose
from ferrule.parsing.spots import find_spot, read_spot
from ferrule.parsing.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a model wrote, taken apart."""

    calls: tuple[ToolCall, ...] = ()
    """In the order written. One with an `error` cannot be made: the model must be told."""
    text: str = ""
    """The prose, without the calls, the tokens of their format, and what the model thought."""


def parse_tool_calls(text: str, schemas: Iterable[Schema] | KnownTools) -> list[ToolCall]:
    """The calls in a model's text that can be made: known tools, with arguments that could be read."""
    return [call for call in read_tool_calls(text, schemas).calls if call.error is None]


def read_tool_calls(text: str, schemas: Iterable[Schema] | KnownTools) -> Reading:
    """All calls in a model's text, also those that cannot be made, and the prose around them."""
    if find_spot(text, 0) is None:
        return Reading(text=text.strip())
    tools = schemas if isinstance(schemas, KnownTools) else KnownTools(schemas)
    stretches = _settle(scan(Text(text), tools))
    calls = tuple(call for found in stretches for call in found.calls)
    return Reading(calls=calls, text=_prose(text, stretches))


def scan(text: Text, tools: KnownTools) -> list[Found]:
    """Everything that may not be prose, from left to right."""
    stretches: list[Found] = []
    at = 0
    while (spot := find_spot(text.whole, at)) is not None:
        if spot.kind == "final":
            break
        text.spend()
        found = read_spot(text, spot, tools)
        if spot.kind == "thought" and stretches and stretches[-1].kind != "thought":
            # The prompt had opened this thought: what looked like calls so far was part of it.
            stretches = [s for s in stretches if s.kind in ("thought", "token")]
        if found is not None:
            stretches.append(found)
        at = max(found.end if found else spot.end, text.resume)
    return stretches


def _settle(stretches: list[Found]) -> list[Found]:
    """Where a model used a format made for calls, only that counts; an echo of such a call is taken out with it."""
    made = [call for found in stretches if found.tagged for call in found.calls]
    if made:
        stretches = [
            found if found.tagged or not found.calls else replace(found, calls=())
            for found in stretches
            if found.tagged or all(call in made for call in found.calls)
        ]
    any_calls = any(found.calls for found in stretches)
    return [found for found in stretches if found.kind != "code" and (any_calls or found.kind != "wrapper")]


def _prose(text: str, stretches: list[Found]) -> str:
    prose, parts, at = Prose(), [], 0
    after_calls = False
    for found in stretches:
        piece = text[at : found.start]
        if not (after_calls and not piece.strip(" \t\r\n;,|")):
            parts.append(prose.add(piece))
        if found.kind != "token":
            prose.gap()
        after_calls = bool(found.calls)
        at = max(at, found.end)
    parts.append(prose.add(text[at:]))
    return "".join(parts)
