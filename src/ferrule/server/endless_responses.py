"""Responses that end only with their connection, such as streams of events; a stopping server does not await them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

_ENDLESS: Final = "ferrule.endless"


def mark_endless(scope: MutableMapping[str, Any]) -> None:
    """Say that the response to a request does not end by itself."""
    scope.setdefault("state", {})[_ENDLESS] = True


def is_endless(scope: Mapping[str, object]) -> bool:
    state = scope.get("state")
    return isinstance(state, dict) and state.get(_ENDLESS) is True
