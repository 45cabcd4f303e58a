"""Values of environment variables that a command or an endpoint uses, kept out of what its calls give back.

Programs and servers repeat what they were given, in error messages above all. Whatever stands there for `${VAR}` is
replaced. Short values are not (they would turn up anywhere), nor are those every program gets (`HOME`, `LANG`), nor
plain addresses: a server's answer is full of links to itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from ferrule.content import Resource, Text
from ferrule.errors import CallError, ExecutionFailed
from ferrule.executors.templates import texts_in
from ferrule.executors.variables import is_common, variables_in

REDACTED: Final = "[redacted]"
SHORTEST: Final = 8

_PLAIN_ADDRESS = re.compile(r"https?://[^\s@?#]*")


class Secrets:
    """What must not show. Nothing, unless a template and an environment are given."""

    def __init__(self, template: Any = None, environ: Mapping[str, str] | None = None) -> None:
        self._forms: list[str] = []
        self.add(_secret_values(template, environ or {}))

    def add(self, values: Iterable[str]) -> None:
        """Let more not show."""
        # As they are, in JSON, in the JSON of PHP, and in a URL; a long one may contain a short one.
        forms = {
            form
            for v in values
            for form in (v, json.dumps(v)[1:-1], v.replace("/", "\\/"), quote(v, safe="", errors="replace"))
        }
        self._forms = sorted({*self._forms, *forms}, key=len, reverse=True)

    def hide(self, value: Any) -> Any:
        """The same value, without the secrets in its texts."""
        try:
            return self._hidden(value) if self._forms else value
        except RecursionError:
            raise ExecutionFailed("the result is nested too deep to be searched for secrets.") from None

    def hide_in_bytes(self, content: bytes) -> bytes:
        for form in self._forms:
            content = content.replace(form.encode("utf-8", "surrogateescape"), REDACTED.encode())
        return content

    @contextmanager
    def hidden_in_errors(self) -> Iterator[None]:
        """What is raised inside says nothing secret."""
        try:
            yield
        except CallError as error:
            error.args = self.hide(error.args)
            raise

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            for form in self._forms:
                value = value.replace(form, REDACTED)
            return value
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._hidden(item) for item in value)
        if isinstance(value, Resource) and value.data is not None:
            return replace(value, text=self._hidden(value.text), data=self.hide_in_bytes(value.data))
        if isinstance(value, (Text, Resource)):
            return replace(value, text=self._hidden(value.text))
        return value


def _secret_values(template: Any, environ: Mapping[str, str]) -> set[str]:
    names = {name for text in texts_in(template) for name in variables_in(text) if not is_common(name)}
    values = {environ.get(name, "") for name in names}
    return {value for value in values if len(value) >= SHORTEST and not _PLAIN_ADDRESS.fullmatch(value)}
