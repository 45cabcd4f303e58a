"""Texts of a command or an endpoint, filled with the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferrule.content import as_text
from ferrule.executors.variables import fill_template, placeholders_in


def fill_text(text: str, params: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """The text with its variables and parameters filled in; None when a parameter it names has no value."""
    if any(params.get(name) is None for name in placeholders_in(text)):
        return None
    return fill_template(text, environ, lambda name: _said(params[name]))


def whole_placeholder(text: str) -> str | None:
    """The name of the parameter when the text is nothing but `{name}`: then its value need not become text."""
    names = placeholders_in(text)
    return names[0] if len(names) == 1 and text == f"{{{names[0]}}}" else None


def names_in(template: Any) -> Iterator[str]:
    """The parameters named anywhere in texts, lists and mappings."""
    for text in texts_in(template):
        yield from placeholders_in(text)


def texts_in(template: Any) -> Iterator[str]:
    """Every text in texts, lists and mappings."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        yield from texts_in(list(template.values()))
    elif isinstance(template, (list, tuple)):
        for part in template:
            yield from texts_in(part)


def _said(value: Any) -> str:
    """A value as it is put in. A text as it is: what it holds that nobody can send is for the executor to refuse."""
    return value if isinstance(value, str) else as_text(value)
