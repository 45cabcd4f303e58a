"""What the set-up of several bundled tools needs: worker processes, settings of a project, missing packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ferrule.core.call import DefaultTimeout, ToolExecutionContext
from ferrule.core.content import copy_json
from ferrule.core.spec import Tool
from ferrule.errors import SetupError
from ferrule.kinds.function.code_digest import digest_of_code
from ferrule.process.function_reference import ObjectFunction


class WorkerMethods:
    """The methods of a stateless object as functions for a worker process, which gets a copy of the object."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._methods: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._methods:
            method = getattr(type(self._target), action)
            self._methods[action] = ObjectFunction(method, self._target, source_function=None)
        return self._methods[action]

    @property
    def code_digest(self) -> str:
        return digest_of_code(self._target)


def limit_seconds(context: ToolExecutionContext | None, seconds: float, share: float) -> float:
    """Return the seconds for the work of a call: a share of what its caller allows, at most `seconds`."""
    if context is None or isinstance(context.timeout, DefaultTimeout):
        return seconds
    return min(seconds, share * context.timeout)


def require_positive(**amounts: Any) -> None:
    for name, value in amounts.items():
        if not value > 0:
            raise SetupError(f"{name} must be more than 0, not {value!r}")


def configure_tool(
    tool: Tool,
    *,
    needs: str = "",
    output: dict[str, Any] | None = None,
    timeout: float | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> Tool:
    """Return a tool of one action with what only the configuration knows.

    `parameters` has the JSON Schema keywords to set, by the name of the parameter.
    """
    [capability] = tool.spec.capabilities
    schema = copy_json(capability.schema)
    for name, keywords in (parameters or {}).items():
        schema["properties"][name] |= keywords
    capability = replace(capability, parameters=schema, output=output or capability.output)
    limits = tool.spec.limits if timeout is None else replace(tool.spec.limits, timeout=timeout)
    return replace(tool, needs=needs, spec=replace(tool.spec, capabilities=[capability], limits=limits))


def describe_needs(problems: Mapping[str, str], kind: str, nothing: str) -> str:
    """Return why a tool cannot be used; an empty text if one of what it has by name is ready.

    `problems` has an empty text for what is ready, `kind` says what the names are of, and `nothing` is for no names.
    """
    if not problems:
        return nothing
    if not all(problems.values()):
        return ""
    return "; ".join(f"for the {kind} {name!r}: {problem}" for name, problem in problems.items())


def describe_missing_package(package: str, extra: str) -> str:
    """Return how to install a package that is missing; an empty text if the package is installed."""
    return "" if find_spec(package) else f"the package {package}: pip install 'ferrule[{extra}]'"
