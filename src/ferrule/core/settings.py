"""Reading one section of a configuration file into a dataclass or a pydantic model.

Messages name the file, the line, the section and the key, and what is similar to a name that is wrong.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError

T = TypeVar("T")

_HEADER = lazy_pattern(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = lazy_pattern(r"\s*([\w.\"'-]+?)\s*=")


@dataclass(frozen=True, slots=True)
class SettingsOrigin:
    """Where settings come from, for messages: a variable, or a file with the lines of its sections and keys."""

    name: str
    lines: Mapping[str, int] = field(default_factory=dict)
    """By the path of a section or key; the third `[[rules]]` is `rules#3`."""

    @classmethod
    def of_text(cls, name: str, text: str) -> SettingsOrigin:
        lines, section, items = dict[str, int](), "", Counter[str]()
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.match(line):
                section = re.sub("[\"']", "", header[2])
                lines.setdefault(section, number)
                if header[1] == "[[":
                    items[section] += 1
                    section = f"{section}#{items[section]}"
                lines.setdefault(section, number)
            elif key := _KEY.match(line):
                lines.setdefault(f"{section}.{key[1]}".lstrip(".").replace('"', ""), number)
        return cls(name, lines)

    def of_item(self, name: str, number: int) -> SettingsOrigin:
        """Return the origin of one section of a list."""
        item = f"{name}#{number}"
        paths = [path for path in self.lines if f"{path}.".startswith(f"{item}.")]
        lines = {name + path.removeprefix(item): self.lines[path] for path in paths}
        return SettingsOrigin(self.name, lines or {name: self.lines[name]} if name in self.lines else lines)

    def at(self, path: str) -> str:
        """Return `ferrule.toml:12`: the line of the key or, without one, of the section around it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def read_section(
    config_type: type[T], name: str, values: Any, origin: SettingsOrigin, environ: Mapping[str, str] | None = None
) -> T:
    """Return a section as a dataclass or a pydantic model. SetupError names the file, the section and the key."""
    if not isinstance(values, dict):
        raise SetupError(f"{origin.at(name)}: [{name}] must be a section with keys, not {values!r}")
    hints = _get_field_types(config_type)
    for key in values:
        if key not in hints:
            raise SetupError(
                f"{origin.at(f'{name}.{key}')}: there is no {key!r} in [{name}].{did_you_mean(key, hints)}"
            )
    read = {key: _read_value(hints[key], f"{name}.{key}", value, origin) for key, value in values.items()}
    for key, text in _read_environment_variables(hints, name, environ or {}).items():
        read[key] = _read_value(hints[key], f"{name}.{key}", text, SettingsOrigin(f"FERRULE_{name}_{key}".upper()))
    try:
        if not read and _has_only_defaults(config_type):  # no need to build a validator, which takes pydantic long
            return config_type.model_construct() if issubclass(config_type, BaseModel) else config_type()
        return TypeAdapter(config_type).validate_python(read)
    except ValidationError as error:
        raise SetupError(f"{origin.at(_first_path(error, name))}: {_describe_first_problem(error, name)}") from None
    except SetupError as error:  # of a __post_init__
        raise SetupError(f"{origin.at(name)}: [{name}]: {error}") from None


def _has_only_defaults(config_type: Any) -> bool:
    if issubclass(config_type, BaseModel):
        return not any(each.is_required() for each in config_type.model_fields.values())
    missing = dataclasses.MISSING
    return all(each.default is not missing or each.default_factory is not missing for each in fields(config_type))


def _read_value(hint: Any, name: str, value: Any, origin: SettingsOrigin) -> Any:
    """Read one value. Sections inside a section are read on their own, so that messages name them."""
    if _is_section_type(hint):
        return read_section(hint, name, value, origin)
    if (
        typing.get_origin(hint) is dict
        and _is_section_type(inner := typing.get_args(hint)[1])
        and isinstance(value, dict)
    ):
        return {key: read_section(inner, f"{name}.{key}", each, origin) for key, each in value.items()}
    if (
        typing.get_origin(hint) in (list, tuple)
        and _is_section_type(inner := typing.get_args(hint)[0])
        and isinstance(value, list)
    ):
        return [read_item(inner, name, number, each, origin) for number, each in enumerate(value, 1)]
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        is_union = isinstance(hint, types.UnionType)  # whose members would be named as if they were keys
        problem = _describe_first_problem(error, name, with_path=not is_union)
        raise SetupError(f"{origin.at(_first_path(error, name))}: {problem}") from None


def read_item(config_type: type[T], name: str, number: int, value: Any, origin: SettingsOrigin) -> T:
    try:
        return read_section(config_type, name, value, origin.of_item(name, number))
    except SetupError as error:
        raise SetupError(f"{error} (in number {number} of [[{name}]])") from None


_REQUIREMENTS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section with keys",
    "mapping_type": "a section with keys",
}
"""What pydantic's kinds of errors mean, in plain words."""


def _first_path(error: ValidationError, name: str) -> str:
    return ".".join([name, *map(str, error.errors()[0]["loc"])])


def _describe_first_problem(error: ValidationError, name: str, *, with_path: bool = True) -> str:
    """Describe the wrong value only: a secret may be beside it."""
    problem = error.errors()[0]
    path = _first_path(error, name) if with_path else name
    if problem["type"] in ("missing", "missing_argument"):
        return f"{path} is missing"
    allowed = _REQUIREMENTS.get(problem["type"]) or problem.get("ctx", {}).get("expected")
    requirement = problem["msg"] if allowed is None else f"must be {allowed}"
    return f"{path}: {requirement}, not {problem['input']!r}"


def _is_section_type(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel))


def _get_field_types(config_type: Any) -> dict[str, Any]:
    """Return the keys of a section and their types."""
    hints = typing.get_type_hints(config_type)
    if issubclass(config_type, BaseModel):
        return {key: hints[key] for key in config_type.model_fields}
    return {each.name: hints[each.name] for each in fields(config_type)}


def _read_environment_variables(hints: Mapping[str, Any], section: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Find `FERRULE_<SECTION>_<KEY>` for every key whose value fits one variable."""
    names = {key: f"FERRULE_{section}_{key}".upper() for key, hint in hints.items() if _is_scalar_hint(hint)}
    return {key: environ[name] for key, name in names.items() if name in environ}


def _is_scalar_hint(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return all(_is_scalar_hint(part) for part in typing.get_args(hint))
    return hint in (str, int, float, bool, type(None)) or typing.get_origin(hint) is typing.Literal
