"""Arguments as people type them: `key=value`, or `key:=JSON` for what is not text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferrule.errors import SetupError


def read_arguments(pairs: Sequence[str], params: str | None) -> dict[str, Any]:
    """The arguments of a call; pairs win over what `--params` said."""
    read = _read_params(params) if params is not None else {}
    for pair in pairs:
        name, sign, value = _split(pair)
        read[name] = _json(value, f"{name}:=") if sign == ":=" else value
    return read


def read_pairs(said: Sequence[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` as often as an option was given."""
    pairs = {}
    for each in said:
        name, separator, value = each.partition("=")
        if not name or not separator:
            raise SetupError(f"{option} takes NAME=VALUE, not {each!r}.")
        pairs[name] = value
    return pairs


def _split(pair: str) -> tuple[str, str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name.rstrip(":"):
        raise SetupError(f"An argument is written name=value, or name:=JSON; {pair!r} is neither.")
    return (name[:-1], ":=", value) if name.endswith(":") else (name, "=", value)


def _read_params(params: str) -> dict[str, Any]:
    if params == "-":
        text = sys.stdin.read()
    elif params.startswith("@"):
        try:
            text = Path(params[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise SetupError(f"Cannot read {params[1:]}: {error.strerror}.") from None
    else:
        text = params
    read = _json(text, "--params")
    if not isinstance(read, dict):
        raise SetupError(f"--params takes a JSON object such as '{{\"a\": 1}}', not {text[:60]!r}.")
    return read


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SetupError(f"{where} is not valid JSON ({error}): {text[:60]!r}") from None
