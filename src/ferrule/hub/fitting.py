"""Fitting one set of arguments to candidates that call the same thing by other names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferrule.errors import InvalidArguments, SpecError
from ferrule.spec import JsonSchema, ToolCapability
from ferrule.validation import ToolParameterValidator
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of


class Fitting:
    """Gives each candidate the arguments in its own words."""

    def __init__(self, *, strict: bool) -> None:
        self._validator = ToolParameterValidator(strict=strict)

    def fit(self, capability: ToolCapability, params: Any) -> Any:
        """The arguments by their names, else the one text among them as the one text the action requires.

        InvalidArguments says why they cannot be fitted.
        """
        try:
            check = self._validator.check_of(capability)
        except SpecError as error:
            raise InvalidArguments(str(error)) from None
        if check.accept(params) is not None:
            return params
        checked = check.check(params)
        if checked.is_valid:
            return params
        for reading in _readings(capability, params) if isinstance(params, dict) else ():
            if check.check(reading).is_valid:
                return reading
        raise InvalidArguments(f"The arguments do not fit it: {' '.join(map(str, checked.errors))}")


def _readings(capability: ToolCapability, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What else the arguments could mean, the most likely first."""
    properties = properties_of(resolve(capability.schema, capability.schema))
    known = {name: value for name, value in params.items() if name in properties}
    yield known
    wanted = _required_texts(capability)
    given = [name for name, value in params.items() if isinstance(value, str)]
    # A text that has its place by its name stays there, and nothing but a secret is given as one.
    if len(wanted) == len(given) == 1 and given[0] not in known and wanted[0] not in capability.secret_names:
        yield {**known, wanted[0]: params[given[0]]}


def _required_texts(capability: ToolCapability) -> list[str]:
    root = capability.schema
    schema = resolve(root, root)
    properties = properties_of(schema)
    return [name for name in schema.get("required") or () if _is_text(properties.get(name), root)]


def _is_text(schema: Any, root: JsonSchema) -> bool:
    kinds = {kind for branch in branches(resolve(schema, root), root) for kind in types_of(branch)}
    return kinds - {"null"} == {"string"}
