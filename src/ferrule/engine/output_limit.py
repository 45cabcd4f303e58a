"""Output that is too long for its reader: kept whole as an artifact, handed on cut at the end of a sentence."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from ferrule.content import as_text, encode_json
from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

MAX_ERROR = 10_000

# Each run of marks is looked at from its beginning only: from each of its places it would take hours.
_SENTENCE_END = re.compile(r"[。！？；…]+[”’」』）]*|(?<![.!?])[.!?]+[\"')\]]*(?=\s|\Z)|\n")
_SHORT = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A result that was cut."""

    shown: dict[str, Any]
    artifact_id: str | None
    """None when it could not be kept."""
    size: int


def cut_output(data: dict[str, Any], most: int, store: ToolKnowledgeStore, secrets: tuple[str, ...]) -> Cut | None:
    """What to hand on instead of a result of more than so many bytes; None for one that is short enough."""
    whole = encode_json(data)
    if len(whole) <= most:
        return None
    text = as_text(data["result"]) if set(data) == {"result"} else whole.decode()
    artifact_id = _keep(data, whole, store, secrets)
    kept = f" and is kept as artifact {artifact_id}" if artifact_id else ""
    note = f"[Cut here: the whole result has {len(whole):,} bytes{kept}. Ask for a smaller part.]"
    shown = {"result": f"{cut_text(text, most)}\n{note}", "truncated": True, "artifact_id": artifact_id}
    if data.get("untrusted"):  # what is left of a stranger's words is still that
        shown["untrusted"] = True
    return Cut(shown=shown, artifact_id=artifact_id, size=len(whole))


def cut_text(text: str, max_bytes: int) -> str:
    """At most so many bytes of UTF-8, ending with a sentence if one ends in the last half, else with a word."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return text
    shown = encoded[:max_bytes].decode("utf-8", "ignore")
    ends = [match.end() for match in _SENTENCE_END.finditer(shown, len(shown) // 2)]
    if ends:
        return shown[: ends[-1]].rstrip()
    space = shown.rfind(" ", len(shown) // 2)
    return shown[:space] if space > 0 else shown


def cut_error(text: str) -> str:
    """An error a model can still read."""
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}… ({len(text):,} characters)"


def _keep(data: dict[str, Any], whole: bytes, store: ToolKnowledgeStore, secrets: tuple[str, ...]) -> str | None:
    if secrets or store.redaction.suspects(whole.decode()):  # an artifact is a record too
        whole = encode_json(store.redaction.clean(data, secrets))
    try:
        return store.artifacts.put(whole, "application/json").artifact_id
    except (OSError, StoreError) as error:  # a full disk must not cost the caller what is there
        logger.error("size=<%d> | a long result could not be kept whole: %s", len(whole), error)
        return None


def surely_short(data: dict[str, Any], most: int) -> bool:
    """Whether a result is short at first sight, without writing it out."""
    if len(data) > 8:
        return False
    left = most // 6  # a character of JSON text has at most six bytes
    for key, value in data.items():
        if type(value) is str:
            left -= len(value) + len(key)
        elif type(value) in _SHORT:
            left -= 32 + len(key)
        else:
            return False
    return left > 0
