"""Results of tools as they are read: the part that matters, within a length, cut at a sentence's end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrule.content import as_text
from ferrule.describe.sentences import within
from ferrule.hub.strategy import kind_of

LENGTHS: Final = {"calculate": 100, "time": 200, "search": 500, "history": 1000}
OTHERS: Final = 500
HITS: Final = 3
"""Of what a search finds."""

_LISTS: Final = ("results", "items", "hits", "entries")


def format_result(output: Any, *, name: str, tags: Collection[str] = ()) -> str:
    """The result of a tool in words."""
    kind = "history" if "history" in name else kind_of(tags) or "other"
    return within(_words(output, kind), LENGTHS.get(kind, OTHERS))


def _words(output: Any, kind: str) -> str:
    if kind == "search":
        found = _found(output)
        if found is not None:
            return "\n".join(_hit(hit) for hit in found[:HITS])
    if kind == "history" and isinstance(output, list):
        return "\n".join(_turn(turn) for turn in output)
    if kind == "time" and isinstance(output, Mapping) and isinstance(output.get("text"), str):
        return str(output["text"])
    if isinstance(output, Mapping) and len(output) == 1:
        output = next(iter(output.values()))
    return as_text(output).strip()


def _turn(turn: Any) -> str:
    if not isinstance(turn, Mapping) or "question" not in turn:
        return f"- {as_text(turn)}"
    return f"- {turn['question']}" + (f" → {turn['answer']}" if turn.get("answer") else "")


def _found(output: Any) -> list[Any] | None:
    if isinstance(output, list):
        return output
    if isinstance(output, Mapping):
        return next((output[name] for name in _LISTS if isinstance(output.get(name), list)), None)
    return None


def _hit(hit: Any) -> str:
    if not isinstance(hit, Mapping):
        return f"- {as_text(hit)}"
    title, snippet = hit.get("title") or hit.get("name"), hit.get("snippet") or hit.get("description")
    where = hit.get("url") or hit.get("link")
    said = ": ".join(str(one) for one in (title, snippet) if one) or as_text(hit)
    return f"- {said}" + (f" ({where})" if where else "")
