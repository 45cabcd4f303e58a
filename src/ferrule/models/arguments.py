"""The arguments of calls as model APIs write them: a JSON text, which may be anything but JSON."""

from __future__ import annotations

import json
from typing import Any

from ferrule.messages import ToolCall

UNREADABLE = "unreadable_arguments"
"""Under this name arguments that are no JSON object are sent back, to servers that take nothing else."""


def read_call(name: str, arguments: Any, *, id: str = "", cut_off: bool = False) -> ToolCall:
    """A call whose arguments cannot be read says so in `error`; it never gets empty ones instead.

    `cut_off`: the model ran out of tokens while it wrote, so that even no arguments at all are not all of them.
    """
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=arguments, id=id)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    if text.strip() in ("", "null") and not cut_off:
        return ToolCall(name=name, id=id)
    try:
        return ToolCall(name=name, arguments=_object(text), id=id)
    except ValueError as error:
        reason = "they were cut off because the answer became too long" if cut_off else str(error)
    problem = f"The arguments of {name!r} cannot be read: {reason}. Send them again as one JSON object."
    return ToolCall(name=name, id=id, error=problem, raw=text)


def sent_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of an earlier call, as an object: many servers refuse a history with broken ones."""
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    try:
        return _object(arguments)
    except ValueError:
        return {UNREADABLE: arguments}


def _object(text: str) -> dict[str, Any]:
    # Not orjson: it reads integers beyond 64 bits as floats.
    value = json.loads(text)
    if isinstance(value, str):  # some servers encode twice
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
    return value
