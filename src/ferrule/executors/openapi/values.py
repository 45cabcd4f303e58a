"""Arguments written as text, in the styles that OpenAPI has for lists and objects.

Everything that comes from a caller is percent-encoded here; the commas and brackets of a style are not.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ferrule.content import as_text, encode_json
from ferrule.executors.openapi.operation import Argument

_SEPARATORS = {"form": ",", "simple": ",", "space": "%20", "tab": "%09", "pipe": "%7C"}


def path_text(argument: Argument, value: Any) -> str:
    """What stands in a path for an argument."""
    if argument.style == "json":
        return _encoded(encode_json(value).decode())
    if argument.style == "matrix":
        return "".join(f";{entry}" for entry in query_entries(argument, value))
    between = "." if argument.style == "label" and argument.explode else ","
    text = between.join(_pieces(value, argument.explode))
    return f".{text}" if argument.style == "label" else text


def query_entries(argument: Argument, value: Any) -> list[str]:
    """The `name=value` entries of a query for an argument."""
    name = _encoded(argument.name)
    if argument.style == "json":
        return [f"{name}={_encoded(encode_json(value).decode())}"]
    if argument.style == "deep" and isinstance(value, dict):
        return [entry for key, inner in value.items() for entry in _deep(f"{name}[{_encoded(str(key))}]", inner)]
    if argument.explode and isinstance(value, dict):
        return _pieces(value, True)
    if argument.explode and isinstance(value, list):
        return [f"{name}={_text(item)}" for item in value]
    separator = _SEPARATORS.get(argument.style, ",")
    return [f"{name}={separator.join(_pieces(value, False))}"]


def header_text(argument: Argument, value: Any) -> str:
    """What stands in a header for an argument: nothing in it is encoded."""
    if argument.style == "json":
        return encode_json(value).decode()
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    if isinstance(value, dict):
        between = "=" if argument.explode else ","
        return ",".join(f"{key}{between}{as_text(item)}" for key, item in value.items())
    return as_text(value)


def _pieces(value: Any, explode: bool) -> list[str]:
    if isinstance(value, list):
        return [_text(item) for item in value]
    if isinstance(value, dict):
        if explode:
            return [f"{_encoded(str(key))}={_text(item)}" for key, item in value.items()]
        return [piece for key, item in value.items() for piece in (_encoded(str(key)), _text(item))]
    return [_text(value)]


def _deep(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [entry for key, inner in value.items() for entry in _deep(f"{name}[{_encoded(str(key))}]", inner)]
    return [f"{name}={_text(item)}" for item in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    return _encoded("" if value is None else as_text(value))


def _encoded(text: str) -> str:
    return quote(text, safe="", errors="replace")
