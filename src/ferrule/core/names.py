"""Names of tools, their form for model APIs, and suggestions for misspelt names.

Model APIs take `[A-Za-z0-9_-]{1,64}`. Tools are called `math.factorial`, `files/read` or 网页导航器. A name that
is allowed stays unchanged; in any other, forbidden characters are encoded as a run of hexadecimal code points between
dashes (`math-2e-factorial`), which can be decoded without a table. Only a name whose encoded form would be longer than
64 characters ends in a digest instead (`…-h-0f3a9c12`), and needs the registry to be decoded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256

from ferrule.core.patterns import lazy_pattern

MAX_NAME_LENGTH = 64
ACTION_SEPARATOR = "__"

_ALLOWED_NAME = lazy_pattern(r"[A-Za-z0-9_-]{1,64}\Z")
_CHARACTERS_TO_ENCODE = lazy_pattern(r"[^A-Za-z0-9_]+")
_SEPARATORS_TO_ENCODE = lazy_pattern(r"(?:[^A-Za-z0-9_]|__+|_\Z)+")
_CODE_RUN = lazy_pattern(r"-((?:[0-9a-f]{1,6}_)*[0-9a-f]{1,6})-")


@lru_cache(maxsize=10_000)
def encode_model_name(name: str) -> str:
    """Return the name for model APIs of a tool (or tool and action) with this name."""
    if _ALLOWED_NAME.match(name) and not _CODE_RUN.search(name) and "-h-" not in name:
        return name
    # Dashes are encoded too: a dash in the result is always the edge of a code, so it can be decoded.
    return _shorten(_CHARACTERS_TO_ENCODE.sub(_encode_characters, name), name)


def _shorten(encoded: str, original: str) -> str:
    if len(encoded) <= MAX_NAME_LENGTH:
        return encoded
    digest = sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{encoded[: MAX_NAME_LENGTH - 3 - len(digest)]}-h-{digest}"


def decode_model_name(encoded: str) -> str:
    """Return the original of a name made by `encode_model_name`, unless it was too long and ends in a digest."""
    return _CODE_RUN.sub(_decode_characters, encoded)


def model_name(tool_id: str, action: str | None = None) -> str:
    """Return `tool_id`, or `tool_id__action` for a tool with several actions.

    No two actions have the same name: the first two underscores end the name of the tool, and those inside of it are
    encoded. An action and a tool may still have the same name; then it means the tool.
    """
    if action is None:
        return encode_model_name(tool_id)
    if ACTION_SEPARATOR not in tool_id and not tool_id.endswith("_"):
        return encode_model_name(f"{tool_id}{ACTION_SEPARATOR}{action}")
    tool = _SEPARATORS_TO_ENCODE.sub(_encode_characters, tool_id)
    encoded = f"{tool}{ACTION_SEPARATOR}{_CHARACTERS_TO_ENCODE.sub(_encode_characters, action)}"
    return _shorten(encoded, f"{tool_id}\0{action}")


def split_model_name(name: str) -> tuple[str, str]:
    """Return the tool and the action of a name that `model_name` made of both."""
    tool, _, action = name.partition(ACTION_SEPARATOR)
    return decode_model_name(tool), decode_model_name(action)


def similar_names(name: str, known_names: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return the known names most similar to one, best first."""
    by_folded = {each.casefold().replace("-", "_"): each for each in known_names}
    folded = name.casefold().replace("-", "_")
    return [by_folded[match] for match in get_close_matches(folded, by_folded, n=limit, cutoff=0.6)]


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return ` Did you mean 'x' or 'y'?` with the leading space, or nothing if all known names differ too much."""
    similar = similar_names(name, known_names)
    return f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""


def _encode_characters(match: re.Match[str]) -> str:
    return "-" + "_".join(f"{ord(c):x}" for c in match.group()) + "-"


def _decode_characters(match: re.Match[str]) -> str:
    points = [int(code, 16) for code in match.group(1).split("_")]
    return "".join(map(chr, points)) if max(points) <= sys.maxunicode else match.group()
