"""Names as sources bring them, names as model APIs allow them, and names that were nearly right.

Model APIs take `[A-Za-z0-9_-]{1,64}`. Tools are called `math.factorial`, `files/read` or 网页导航器. A name that
is allowed stays as it is; any other is written with its forbidden characters as a run of hexadecimal code points
between dashes (`math-2e-factorial`), which can be read back without a table. Only a name whose written form would
be longer than 64 characters ends in a digest instead (`…-h-0f3a9c12`), and needs the registry to be read back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import sha256

MAX_LENGTH = 64
ACTION_SEPARATOR = "__"

_ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_WRITTEN_AS_CODE = re.compile(r"[^A-Za-z0-9_]+")
_CODE_RUN = re.compile(r"-((?:[0-9a-f]{1,6}_)*[0-9a-f]{1,6})-")


def to_model_name(name: str) -> str:
    """The name to show to a model API for a tool (or tool and action) of this name."""
    if _ALLOWED.match(name) and not _CODE_RUN.search(name) and "-h-" not in name:
        return name
    # Here dashes are written as codes too: in the result a dash is always the edge of a code, so it reads back.
    written = _WRITTEN_AS_CODE.sub(_write_run, name)
    if len(written) <= MAX_LENGTH:
        return written
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{written[: MAX_LENGTH - 3 - len(digest)]}-h-{digest}"


def from_model_name(written: str) -> str:
    """The original of a name made by `to_model_name`, unless it was too long to be written whole."""
    return _CODE_RUN.sub(_read_run, written)


def model_name(tool_id: str, action: str | None = None) -> str:
    """`tool_id`, or `tool_id__action` for a tool with several actions."""
    return to_model_name(tool_id if action is None else f"{tool_id}{ACTION_SEPARATOR}{action}")


def near_names(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Known names a caller probably meant, best first."""
    by_folded = {k.casefold().replace("-", "_"): k for k in known}
    folded = name.casefold().replace("-", "_")
    return [by_folded[m] for m in get_close_matches(folded, by_folded, n=most, cutoff=0.6)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x' or 'y'?`, or nothing when no known name is near."""
    near = near_names(name, known)
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _write_run(match: re.Match[str]) -> str:
    return "-" + "_".join(f"{ord(c):x}" for c in match.group()) + "-"


def _read_run(match: re.Match[str]) -> str:
    points = [int(code, 16) for code in match.group(1).split("_")]
    return "".join(map(chr, points)) if max(points) <= sys.maxunicode else match.group()
