"""The tools a text may call, as their schemas tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.messages import Schema, ToolCall
from ferrule.names import from_model_name, near_names, to_model_name

_NAMESPACE = re.compile(r"(?:functions?|default_api|tools?|api)[.:/]")
_AROUND = " \t\r\n`\"'*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One tool that can be called."""

    name: str
    """As the schema has it: the name calls are returned under."""
    parameters: Mapping[str, Any]
    """Their JSON Schema."""

    @property
    def properties(self) -> Mapping[str, Any]:
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def only_parameter(self) -> str | None:
        """The one a value without a name must mean: the only one, or the only required one."""
        if not self.properties:
            return "input"
        names = list(self.properties)
        required = [name for name in self.parameters.get("required") or () if name in self.properties]
        return names[0] if len(names) == 1 else required[0] if len(required) == 1 else None


class KnownTools:
    """Finds tools by the names models write. Build it once where the same schemas serve many texts."""

    __slots__ = ("_by_name",)

    def __init__(self, schemas: Iterable[Schema]) -> None:
        tools = [tool for schema in schemas if (tool := _known(schema))]
        self._by_name = {from_model_name(tool.name): tool for tool in tools}
        self._by_name.update({tool.name: tool for tool in tools})

    def find(self, written: str) -> Known | None:
        """The tool of this name: the schema's, or the one its source gave it."""
        name = _clean(written)
        for candidate in (name, _NAMESPACE.sub("", name, count=1), name.removesuffix(".call")):
            if found := self._by_name.get(candidate) or self._by_name.get(to_model_name(candidate)):
                return found
        return None

    def near(self, written: str, arguments: Iterable[str]) -> bool:
        """Whether a tool of nearly this name takes these arguments: then it was probably meant."""
        names = near_names(_clean(written), self._by_name, most=1)
        given = set(arguments)
        return bool(names and given) and given <= set(self._by_name[names[0]].properties)

    def missing(self, written: str, raw: str, arguments: dict[str, Any] | None = None) -> ToolCall:
        """A call of a tool there is not."""
        name = _clean(written)
        near = dict.fromkeys(repr(self._by_name[n].name) for n in near_names(name, self._by_name))
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        error = f"There is no tool {name!r}.{hint}"
        return ToolCall(name=to_model_name(name), arguments=arguments or {}, error=error, raw=raw)


def refused(tool: Known, reason: str, raw: str) -> ToolCall:
    """A call of a tool there is, which cannot be made as it was written."""
    return ToolCall(name=tool.name, error=f"The arguments of {tool.name!r} cannot be read: {reason}.", raw=raw)


def _known(schema: Schema) -> Known | None:
    described = schema.get("function", schema)
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        return None
    parameters = described.get("parameters", described.get("input_schema"))
    return Known(name=described["name"], parameters=parameters if isinstance(parameters, Mapping) else {})


def _clean(written: str) -> str:
    return written.strip(_AROUND).replace("\\", "")
