"""Output that is too long for its reader: kept whole as an artifact, handed on cut at the end of a sentence."""

from __future__ import annotations

import logging
from typing import Any

from ferrule.core.content import as_text, encode_json
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

MAX_ERROR_CHARACTERS = 10_000

# A run of marks matches only from its first one: tried from each of them, a long run would take quadratic time.
_SENTENCE_END = lazy_pattern(r"[。！？；…]+[”’」』）]*|(?<![.!?])[.!?]+[\"')\]]*(?=\s|\Z)|\n")


def cut_output(
    data: dict[str, Any], max_bytes: int, store: ToolKnowledgeStore, secrets: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a result with at most `max_bytes`, and what to add to its metadata if it had more.

    The artifact in the metadata is None when the whole result could not be stored.
    """
    whole = encode_json(data)
    if len(whole) <= max_bytes:
        return data, {}
    text = as_text(data["result"]) if set(data) == {"result"} else whole.decode()
    artifact_id = _store_whole_output(data, whole, store, secrets)
    stored = f" and is kept as artifact {artifact_id}" if artifact_id else ""
    note = f"[Cut here: the whole result has {len(whole):,} bytes{stored}. Ask for a smaller part.]"
    cut = {"result": f"{cut_text(text, max_bytes)}\n{note}", "truncated": True, "artifact_id": artifact_id}
    if data.get("untrusted"):  # a part of untrusted text is untrusted too
        cut["untrusted"] = True
    return cut, {"artifact_id": artifact_id, "truncated": True, "size": len(whole)}


def cut_text(text: str, max_bytes: int) -> str:
    """Return at most `max_bytes` of UTF-8, ending with a sentence if one ends in the last half, else with a word."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return text
    cut = encoded[:max_bytes].decode("utf-8", "ignore")
    ends = [match.end() for match in _SENTENCE_END.finditer(cut, len(cut) // 2)]
    if ends:
        return cut[: ends[-1]].rstrip()
    space = cut.rfind(" ", len(cut) // 2)
    return cut[:space] if space > 0 else cut


def cut_error(text: str) -> str:
    """Shorten an error message to a length that a model can read."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:MAX_ERROR_CHARACTERS]}… ({len(text):,} characters)"


def _store_whole_output(
    data: dict[str, Any], whole: bytes, store: ToolKnowledgeStore, secrets: tuple[str, ...]
) -> str | None:
    if secrets or store.redaction.may_contain_secret(whole.decode()):  # an artifact is a record too
        whole = encode_json(store.redaction.redact(data, secrets))
    try:
        return store.artifacts.add(whole, "application/json").artifact_id
    except (OSError, StoreError) as error:  # with a full disk the caller still gets the cut result
        logger.error("size=<%d> | a long result could not be stored whole: %s", len(whole), error)
        return None
