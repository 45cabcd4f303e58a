"""Substitution of `${VAR}` and `{param}` in commands and endpoints, and hiding the substituted secrets.

Both stay unreplaced in a tool's spec, so that no secret gets into lists, records or fingerprints. They are replaced
when a call is made, in one pass over the text: an argument that itself contains `${VAR}` or `{param}` is passed on
unchanged and cannot read the environment. `{{name}}` stands for the text `{name}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from ferrule.core.content import REDACTED, Resource, Text, as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, SetupError

_VARIABLE = r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
_LITERAL = r"\{(?P<literal>\{[\w.-]+\})\}"
_PLACEHOLDER = r"\{(?P<parameter>[\w.-]+)\}"

_COMMON_VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"})

_VARIABLES = lazy_pattern(_VARIABLE)
_TEMPLATE = lazy_pattern(f"{_VARIABLE}|{_LITERAL}|{_PLACEHOLDER}")


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """The text with `${VAR}` and `${VAR:-default}` replaced; as in a shell, an empty variable gives the default."""
    return _VARIABLES.sub(lambda match: _variable_value(match, environ), text)


def find_variables(text: str) -> list[str]:
    """The names of the variables `${NAME}` in a text, in order."""
    return [match["variable"] for match in _VARIABLES.finditer(text)]


def is_common_variable(name: str) -> bool:
    """Whether a variable is one that every program gets."""
    return name in _COMMON_VARIABLES or name.startswith("LC_")


def find_placeholders(text: str) -> list[str]:
    """The names of the parameters `{name}` in a text, in order."""
    return [match["parameter"] for match in _TEMPLATE.finditer(text) if match["parameter"]]


def fill_template(text: str, environ: Mapping[str, str], render_parameter: Callable[[str], str]) -> str:
    """The text with its variables replaced, and each `{name}` by `render_parameter(name)`."""

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
    """The text with its variables and parameters filled in; None when one of its parameters has no value."""
    if any(params.get(name) is None for name in find_placeholders(text)):
        return None
    return fill_template(text, environ, lambda name: _argument_to_text(params[name]))


def sole_placeholder_name(text: str) -> str | None:
    """The name of the parameter when the text is only `{name}`: then its value need not become text."""
    names = find_placeholders(text)
    return names[0] if len(names) == 1 and text == f"{{{names[0]}}}" else None


def find_parameters(template: Any) -> Iterator[str]:
    """The names of the parameters in all strings of a template (strings, lists and mappings)."""
    for text in find_strings(template):
        yield from find_placeholders(text)


def find_strings(template: Any) -> Iterator[str]:
    """Every string in a template (strings, lists and mappings)."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        yield from find_strings(list(template.values()))
    elif isinstance(template, (list, tuple)):
        for part in template:
            yield from find_strings(part)


def _argument_to_text(value: Any) -> str:
    """Text stays unchanged, lone surrogates included: the executor refuses what it cannot send."""
    return value if isinstance(value, str) else as_text(value)


MIN_SECRET_LENGTH: Final = 8

_PLAIN_ADDRESS = lazy_pattern(r"https?://[^\s@?#]*")


class Secrets:
    """Values of environment variables that must not appear in the results and errors of calls.

    Programs and servers repeat their input, especially in error messages, so the values of `${VAR}` in a template are
    replaced there. Not replaced are short values (they occur anywhere), those every program gets (`HOME`, `LANG`) and
    plain addresses (a server's response is full of links to itself).
    """

    def __init__(self, template: Any = None, environ: Mapping[str, str] | None = None) -> None:
        self._forms: list[str] = []
        self.add(_find_secret_values(template, environ or {}))

    def add(self, values: Iterable[str]) -> None:
        """Hide more values."""
        # Unchanged, in JSON, in the JSON of PHP, and in a URL. Longest first: a long value may contain a short one.
        forms = {
            form
            for v in values
            for form in (v, json.dumps(v)[1:-1], v.replace("/", "\\/"), quote(v, safe="", errors="replace"))
        }
        self._forms = sorted({*self._forms, *forms}, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def hide(self, value: Any) -> Any:
        """The same value with the secrets in its texts replaced."""
        try:
            return self._replace(value) if self._forms else value
        except RecursionError:
            raise ExecutionFailed("The result is nested too deep to be searched for secrets.") from None

    def hide_in_bytes(self, content: bytes) -> bytes:
        for form in self._forms:
            content = content.replace(form.encode("utf-8", "surrogateescape"), REDACTED.encode())
        return content

    @contextmanager
    def hide_in_errors(self) -> Iterator[None]:
        """Replace secrets in the messages of errors raised inside the block."""
        try:
            yield
        except CallError as error:
            error.args = self.hide(error.args)
            raise

    def _replace(self, value: Any) -> Any:
        if isinstance(value, str):
            for form in self._forms:
                value = value.replace(form, REDACTED)
            return value
        if isinstance(value, dict):
            return {self._replace(key): self._replace(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._replace(item) for item in value)
        if isinstance(value, Resource) and value.data is not None:
            return replace(value, text=self._replace(value.text), data=self.hide_in_bytes(value.data))
        if isinstance(value, (Text, Resource)):
            return replace(value, text=self._replace(value.text))
        return value


def _find_secret_values(template: Any, environ: Mapping[str, str]) -> set[str]:
    names = {name for text in find_strings(template) for name in find_variables(text) if not is_common_variable(name)}
    values = {environ.get(name, "") for name in names}
    return {value for value in values if len(value) >= MIN_SECRET_LENGTH and not _PLAIN_ADDRESS.fullmatch(value)}
