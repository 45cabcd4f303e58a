"""A failed call made again, where its error says what was meant."""

from __future__ import annotations

import re
from typing import Any

from ferrule.models.offline.catalogue import Offer
from ferrule.models.offline.conversation import Done
from ferrule.names import near_names

_MEANT = re.compile(
    r"did you mean:?\s+(?P<one>['\"`‘“][^'\"`’”]+['\"`’”]|[\w./-]+)(?P<more>(?:,| or)\s*['\"`‘“])?", re.I
)
_ONE_OF = re.compile(
    r"(?:must be|should be|expected|allowed(?: values)?(?: are)?:?)\s*(?:one of)?:?\s*(?P<all>[^.;\n]+)", re.I
)
_QUOTES = "'\"`‘’“”[]() "


def mended(failure: Done, offer: Offer) -> dict[str, Any] | None:
    """The arguments with the one value the error speaks of put right; None when it could be meant in two ways."""
    name = _spoken_of(failure)
    meant = _meant(failure, name) if name is not None else None
    if name is None or meant is None or failure.arguments[name] == meant:
        return None
    arguments = {**failure.arguments, name: meant}
    return arguments if offer.accepts(arguments) else None


def _spoken_of(failure: Done) -> str | None:
    """The argument an error is about: whose value it quotes, else whose name it has."""
    quoted = [
        n for n, v in failure.arguments.items() if re.search(rf"['\"`“‘]{re.escape(str(v))}['\"`”’]", failure.answer)
    ]
    named = [n for n in failure.arguments if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", failure.answer)]
    candidates = quoted or named or (list(failure.arguments) if len(failure.arguments) == 1 else [])
    return candidates[0] if len(candidates) == 1 and isinstance(failure.arguments[candidates[0]], str) else None


def _meant(failure: Done, name: str) -> str | None:
    said = _MEANT.search(failure.answer)
    if said is not None:
        return None if said["more"] else said["one"].strip(_QUOTES + "?")
    allowed = _ONE_OF.search(failure.answer)
    if allowed is None:
        return None
    members = [member.strip(_QUOTES) for member in re.split(r",\s*|\s+or\s+", allowed["all"].partition(" not ")[0])]
    near = near_names(str(failure.arguments[name]), [member for member in members if member])
    return near[0] if len(near) == 1 else None
