"""Substitution of `${VAR}` and `{param}` in commands and endpoints.

Both stay unreplaced in a tool's spec, so that no secret gets into lists, records or fingerprints. They are replaced
when a call is made, in one pass over the text: an argument that itself contains `${VAR}` or `{param}` is passed on
unchanged and cannot read the environment. `{{name}}` stands for the text `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ferrule.core.content import as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError

_VARIABLE = r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
_LITERAL = r"\{(?P<literal>\{[\w.-]+\})\}"
_PLACEHOLDER = r"\{(?P<parameter>[\w.-]+)\}"

_COMMON_VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"})

_VARIABLES = lazy_pattern(_VARIABLE)
_TEMPLATE = lazy_pattern(f"{_VARIABLE}|{_LITERAL}|{_PLACEHOLDER}")


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}`; as in a shell, an empty variable gives the default."""
    return _VARIABLES.sub(lambda match: _variable_value(match, environ), text)


def find_variables(text: str) -> list[str]:
    """Return the names of the variables `${NAME}` in a text, in order."""
    return [match["variable"] for match in _VARIABLES.finditer(text)]


def is_common_variable(name: str) -> bool:
    """Return whether a variable is one that every program gets."""
    return name in _COMMON_VARIABLES or name.startswith("LC_")


def find_placeholders(text: str) -> list[str]:
    """Return the names of the parameters `{name}` in a text, in order."""
    return [match["parameter"] for match in _TEMPLATE.finditer(text) if match["parameter"]]


def fill_template(text: str, environ: Mapping[str, str], render_parameter: Callable[[str], str]) -> str:
    """Return the text with its variables replaced, and each `{name}` by `render_parameter(name)`."""

    def replace_match(match: re.Match[str]) -> str:
        if match["variable"]:
            return _variable_value(match, environ)
        return match["literal"] or render_parameter(match["parameter"])

    return _TEMPLATE.sub(replace_match, text)


def _variable_value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name, default = match["variable"], match["default"]
    value = environ.get(name)
    if value is None and default is None:
        raise SetupError(
            f"the environment variable {name!r} is not set: set it, or write ${{{name}:-default}} where it is used"
        )
    return value or default or ""


def fill_if_complete(text: str, params: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return the text with its variables and parameters filled in; None when one of its parameters has no value."""
    if any(params.get(name) is None for name in find_placeholders(text)):
        return None
    # Text stays unchanged, lone surrogates included: the executor refuses what it cannot send.
    return fill_template(text, environ, lambda name: v if isinstance(v := params[name], str) else as_text(v))


def sole_placeholder_name(text: str) -> str | None:
    """Return the name of the parameter when the text is only `{name}`: then its value need not become text."""
    names = find_placeholders(text)
    return names[0] if len(names) == 1 and text == f"{{{names[0]}}}" else None


def find_parameters(template: Any) -> Iterator[str]:
    """Yield the names of the parameters in all strings of a template (strings, lists and mappings)."""
    for text in find_strings(template):
        yield from find_placeholders(text)


def find_strings(template: Any) -> Iterator[str]:
    """Yield every string in a template (strings, lists and mappings)."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        yield from find_strings(list(template.values()))
    elif isinstance(template, (list, tuple)):
        for part in template:
            yield from find_strings(part)
