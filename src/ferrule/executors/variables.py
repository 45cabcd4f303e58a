"""`${VAR}` and `{param}` in what a file says about a command or an endpoint.

Both stay as written in a tool's spec, so that no secret gets into lists, records or fingerprints. They are
replaced when a call is made, in one pass over the text: an argument that itself contains `${VAR}` or `{param}` is
handed on as it came and cannot read the environment. `{{name}}` stands for the text `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ferrule.errors import SetupError

_VARIABLE = r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
_LITERAL = r"\{(?P<literal>\{[\w.-]+\})\}"
_PLACEHOLDER = r"\{(?P<parameter>[\w.-]+)\}"

_COMMON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"})

_VARIABLES = re.compile(_VARIABLE)
_TEMPLATE = re.compile(f"{_VARIABLE}|{_LITERAL}|{_PLACEHOLDER}")


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """The text with `${VAR}` and `${VAR:-default}` replaced; as in a shell, an empty variable gives the default."""
    return _VARIABLES.sub(lambda match: _value_of(match, environ), text)


def variables_in(text: str) -> list[str]:
    """The variables a text asks for by `${NAME}`, in order."""
    return [match["variable"] for match in _VARIABLES.finditer(text)]


def is_common(name: str) -> bool:
    """Whether a variable is one that every program may see."""
    return name in _COMMON or name.startswith("LC_")


def placeholders_in(text: str) -> list[str]:
    """The parameters a text asks for by `{name}`, in order."""
    return [match["parameter"] for match in _TEMPLATE.finditer(text) if match["parameter"]]


def fill_template(text: str, environ: Mapping[str, str], write: Callable[[str], str]) -> str:
    """The text with its variables replaced and each `{name}` by what `write` gives for that parameter."""

    def piece(match: re.Match[str]) -> str:
        if match["variable"]:
            return _value_of(match, environ)
        return match["literal"] or write(match["parameter"])

    return _TEMPLATE.sub(piece, text)


def _value_of(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name, default = match["variable"], match["default"]
    value = environ.get(name)
    if value is None and default is None:
        raise SetupError(
            f"the environment variable {name!r} is not set: set it, or write ${{{name}:-default}} where it is used"
        )
    return value or default or ""
