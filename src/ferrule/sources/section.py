"""One mapping of a tool's file, read key by key; what is wrong is noted at its line and reading goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ferrule.names import did_you_mean
from ferrule.sources.yaml_text import Document, Place

OWN_KEYS = "x-"
"""Keys that start like this belong to the user, for instance to hold what `<<: *name` refers to."""

_KINDS = {bool: "true or false", str: "text", list: "a list", dict: "a mapping", type(None): "nothing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A mapping and where it stands. Every reader returns something usable, also after a problem."""

    document: Document
    place: Place
    values: dict[str, Any]

    def problem(self, message: str, key: str | None = None, hint: str | None = None) -> None:
        place = self.place if key is None else (*self.place, key)
        where = describe_place(self.place)
        self.document.problem(f"{where}: {message}" if where else message, place, hint)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value: `tags:` alone says nothing."""
        return self.values.get(key) is not None

    def allow(self, known: Collection[str], otherwise: str | None = None) -> None:
        """Note every key that is not known."""
        for key in self.values:
            if key not in known and not key.startswith(OWN_KEYS):
                hint = did_you_mean(key, known).strip() or otherwise or f"known here: {', '.join(known)}"
                self.problem(f"unknown key {key!r}", key, hint)

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if isinstance(value, str) or value is None:
            return value if value is not None else default
        self.problem(f"{key} must be text, not {kind_of(value)}", key, self.quoting_hint(key))
        return default

    def required_text(self, key: str, example: str) -> str:
        """Text that must be there; "" after a problem."""
        hint = f"write for instance {key}: {example}"
        if not self.has(key):
            self.problem(f"{key} is missing", None, hint)
            return ""
        value = self.text(key).strip()
        if not value and isinstance(self.values[key], str):
            self.problem(f"{key} is empty", key, hint)
        return value

    def as_written(self, key: str, default: str) -> str:
        """Text or a number, exactly as it stands in the file."""
        value = self.values.get(key)
        if isinstance(value, (dict, list)):
            self.problem(f"{key} must be text, not {kind_of(value)}", key)
        return self.document.texts.get((*self.place, key), default) if self.has(key) else default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if isinstance(value, bool) or value is None:
            return default if value is None else value
        self.problem(f"{key} must be true or false, not {kind_of(value)}", key)
        return default

    def positive(self, key: str, *, whole: bool = False) -> float | int | None:
        """A number above zero."""
        value = self.values.get(key)
        if value is None:
            return None
        fits = isinstance(value, int) or (isinstance(value, float) and not whole)
        if fits and not isinstance(value, bool) and value > 0:
            return value  # type: ignore[no-any-return]
        self.problem(f"{key} must be a {'whole ' if whole else ''}number above 0, not {value!r}", key)
        return None

    def whole(self, key: str, default: int) -> int:
        """Any whole number."""
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return default if value is None else value
        self.problem(f"{key} must be a whole number, not {value!r}", key)
        return default

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, str) and value in allowed:
            return value
        near = did_you_mean(str(value), allowed).strip()
        self.problem(f"{key} {value!r} is not known", key, f"{near} Allowed: {', '.join(allowed)}".strip())
        return default

    def texts(self, key: str) -> list[str]:
        """A list of text."""
        found = []
        for index, value in enumerate(self.entries(key)):
            if isinstance(value, str):
                found.append(value)
            else:
                place = (*self.place, key, index)
                hint = quoting_hint(self.document.texts.get(place))
                self.document.problem(f"{describe_place(place)} must be text, not {kind_of(value)}", place, hint)
        return found

    def entries(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if isinstance(value, list) or value is None:
            return value or []
        hint = f"write {key}: [{value}]" if isinstance(value, (str, int, float)) else "start each entry with '- '"
        self.problem(f"{key} must be a list, not {kind_of(value)}", key, hint)
        return []

    def mapping(self, key: str) -> dict[str, Any]:
        section = self.section(key)
        return section.values if section else {}

    def section(self, key: str) -> Section | None:
        """The mapping under a key; None when there is none."""
        return section_at(self.document, (*self.place, key), self.values.get(key)) if self.has(key) else None

    def sections(self, key: str) -> Iterator[Section]:
        """A list of mappings."""
        for index, value in enumerate(self.entries(key)):
            if (section := section_at(self.document, (*self.place, key, index), value)) is not None:
                yield section

    def quoting_hint(self, key: str) -> str | None:
        return quoting_hint(self.document.texts.get((*self.place, key)))


def section_at(document: Document, place: Place, value: Any) -> Section | None:
    """The section a value is; None, and a problem, when it is no mapping."""
    if isinstance(value, dict):
        return Section(document=document, place=place, values=value)
    where = describe_place(place) or "a tool"
    document.problem(f"{where} must be a mapping, not {kind_of(value)}", place, "write it as lines of 'key: value'")
    return None


def kind_of(value: Any) -> str:
    """What a value is, for people: `a list`, `true or false`, `the number 5`."""
    return _KINDS.get(type(value)) or f"the number {value}"


def quoting_hint(written: str | None) -> str | None:
    return None if written is None else f'put it in quotes: "{written}"'


def describe_place(place: Place) -> str:
    """`parameters[0].validation` for `("parameters", 0, "validation")`."""
    described = ""
    for step in place:
        described += f"[{step}]" if isinstance(step, int) else f".{step}" if described else step
    return described
