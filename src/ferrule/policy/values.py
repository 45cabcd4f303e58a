"""The values in the arguments and results of calls: which role each has, which ones are ids, whether there is text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.catalog.parameter_roles import ParameterRole, infer_role, singular
from ferrule.catalog.tags import split_name
from ferrule.core.content import as_text
from ferrule.core.spec import Tool, ToolCapability

_OPAQUE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:#-]{0,99}")
PLAIN_NUMBER: Final = re.compile(r"[\d\s.,:/+%TZ-]+")
_ID_WORDS: Final = frozenset("code guid id identifier key no number ref uuid 编号 标识 号码".split())
MEMBER_WORDS: Final = frozenset(
    "assignee channel group handle login member name owner room team user username 用户 成员 频道".split()
)
"""Words of fields with the names by which a server knows people and places of its own."""
MAX_SETTING: Final = 80
"""Characters of a text that is a setting, not a content."""
NAME_ROLE: Final = ParameterRole(role="target", kind="name")


@dataclass(frozen=True, slots=True)
class ArgumentValue:
    """A value in the arguments of a call, with the role of the parameter or the field that it is in."""

    parameter: str
    role: ParameterRole
    text: str
    nouns: frozenset[str] = frozenset()
    """What its name says besides that it is an id: `file` of `file_id`."""
    key: str = ""
    """The name of the field that the value is in, or of the parameter; `[]` in a list."""


def find_values(arguments: Mapping[str, Any], roles: Mapping[str, ParameterRole]) -> Iterator[ArgumentValue]:
    content = ParameterRole(role="content", reason="the tool does not declare it")
    for name, argument in arguments.items():
        role = roles.get(name) or infer_role(name, {})
        for key, value in find_leaves(name, argument):
            if isinstance(value, bool) or value is None or value == "":
                continue
            own = role
            if key != name:
                inferred = infer_role(key, {})
                own = inferred if inferred.is_target or not role.is_target else role
                own = content if role.is_target and not inferred.is_target and "name says" in inferred.reason else own
            nouns = frozenset(singular_words(key)) - _ID_WORDS
            yield ArgumentValue(name, own, as_text(value), nouns, "[]" if isinstance(argument, (list, tuple)) else key)


def find_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values inside a value, each with the name of the field that it is in.

    A key that is no name, such as an address, is a value too.
    """
    pending = [(name, value)]
    while pending:  # not recursive: arguments may be nested as deeply as recursion goes
        name, value = pending.pop()
        if isinstance(value, Mapping):
            yield from ((name, str(key)) for key in value if not str(key).isidentifier())
            pending += [(str(key), inner) for key, inner in reversed([*value.items()])]
        elif isinstance(value, (list, tuple)):
            pending += [(name, inner) for inner in reversed(value)]
        else:
            yield name, value


def find_ids(value: Any, words: frozenset[str], *, is_id: bool = False) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the ids inside a result, each with the words of the fields that it is in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            names = singular_words(str(key))
            is_field = not (_ID_WORDS | MEMBER_WORDS).isdisjoint(names)
            is_whole = str(key) == "result" and isinstance(inner, (list, str))
            yield from find_ids(inner, words.union(names), is_id=is_field or is_whole)
    elif isinstance(value, list):
        for inner in value:
            yield from find_ids(inner, words, is_id=is_id)
    elif is_id and isinstance(value, (str, int)) and _OPAQUE_ID.fullmatch(str(value)):
        yield str(value), words


def words_of(tool: Tool, capability: ToolCapability) -> tuple[str, ...]:
    return (*singular_words(tool.id), *singular_words(capability.name))


def singular_words(name: str) -> tuple[str, ...]:
    return tuple(map(singular, split_name(name)))


def find_names(values: Sequence[ArgumentValue]) -> list[ArgumentValue]:
    """Return what a call without a target is checked by: how the thing it makes is called, or else its settings."""
    labels = [replace(value, role=NAME_ROLE) for value in values if value.role.is_label]
    if labels:
        return labels
    return [
        replace(value, role=NAME_ROLE)
        for value in values
        if len(value.text) <= MAX_SETTING and "\n" not in value.text and not PLAIN_NUMBER.fullmatch(value.text)
        if not value.role.is_choice
    ]


def has_text(value: Any, names: Collection[str]) -> bool:
    """Return whether a value has text, or a field that is none of the `names` that its tool declares."""
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, dict):
        return any(key not in names or has_text(inner, names) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(has_text(inner, names) for inner in value)
