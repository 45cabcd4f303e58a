"""The tool calls of a script: which tools it may call, and how each call goes through the engine.

A script is written by a model, so it may do no more than the model may. It sees only the tools that its caller may
use. Of these it may call the read-only ones, or those that the configuration names; and never one that needs a
person's approval, because a script cannot pause for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from ferrule.catalog.registry import ToolRegistry
from ferrule.core.call import DEFAULT_TIMEOUT, ToolExecutionContext, ToolExecutionResult
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import Decision
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngine
from ferrule.errors import (
    APPROVAL_REQUIRED,
    PERMISSION_DENIED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    CallError,
    InvalidArguments,
    PermissionDenied,
    ToolNotFound,
)
from ferrule.policy.policy import Permissions
from ferrule_tools.python.script import to_plain_json

NAME: Final = "python_executor"
_EXCLUDED_TOOLS: Final = frozenset({NAME, "call_tool", "ask_user", "finish_task"})
"""Itself, a tool that would call others for it, and tools that control the run it is part of."""
_NOT_IN_IDENTIFIERS: Final = lazy_pattern(r"\W", re.ASCII)
_MAX_ERROR_TEXT: Final = 2_000
_ALLOW: Final = Decision(verdict="allow")

PythonException: TypeAlias = Literal["ValueError", "TimeoutError", "PermissionError", "NameError", "RuntimeError"]

_EXCEPTIONS: Final[Mapping[str, PythonException]] = {
    VALIDATION_ERROR: "ValueError",
    TIMEOUT: "TimeoutError",
    PERMISSION_DENIED: "PermissionError",
    APPROVAL_REQUIRED: "PermissionError",
    TOOL_NOT_FOUND: "NameError",
}
"""What a script can catch, by error type; all others are a RuntimeError."""


class ScriptPermissions:
    """The tools that one script may call, by function name."""

    def __init__(
        self, registry: ToolRegistry | None, permissions: Permissions | None, patterns: Sequence[str] | None
    ) -> None:
        """`patterns` name the tools it may call, whatever they do; None: all read-only tools."""
        self._registry, self._permissions, self._patterns = registry, permissions, patterns

    def find(self, function: str) -> tuple[Tool, ToolCapability]:
        """The tool of a function; raises an error that the script can catch if it may not call it."""
        entry = self._functions.get(function)
        if entry is None:
            raise ToolNotFound(f"name {function!r} is not defined.{did_you_mean(function, self.names())}")
        problem = self._refusal(*entry)
        if problem is not None:
            raise PermissionDenied(problem)
        return entry

    def has(self, function: str) -> bool:
        return function in self._functions

    def names(self) -> list[str]:
        """Of the functions that can be called."""
        return sorted(name for name, entry in self._functions.items() if self._refusal(*entry) is None)

    @cached_property
    def _functions(self) -> dict[str, tuple[Tool, ToolCapability]]:
        """Every tool of the caller by its model name, or by the closest Python identifier."""
        exact: dict[str, tuple[Tool, ToolCapability]] = {}
        adapted: dict[str, tuple[Tool, ToolCapability]] = {}
        for tool in self._select_tools():
            for capability in tool.spec.capabilities:
                name = tool.spec.model_name(capability)
                if tool.id in _EXCLUDED_TOOLS or self._decide(tool, capability).verdict == "deny":
                    continue
                if name.isidentifier():
                    exact.setdefault(name, (tool, capability))
                else:
                    adapted.setdefault(_to_identifier(name), (tool, capability))
        return adapted | exact

    def _select_tools(self) -> Iterable[Tool]:
        """Of several tools with one id, the first that the caller may use."""
        if self._registry is None or self._permissions is None:
            return ()
        return self._permissions.select_tools(self._registry.snapshot()).values()

    def _decide(self, tool: Tool, capability: ToolCapability) -> Decision:
        return _ALLOW if self._permissions is None else self._permissions.decide(tool, capability)

    def _refusal(self, tool: Tool, capability: ToolCapability) -> str | None:
        """Why a script may not call a tool that its caller may call; None when it may."""
        name = tool.spec.model_name(capability)
        if self._decide(tool, capability).verdict == "ask":
            return f"{name} needs the user's approval: call it by itself, not in a script."
        if self._patterns is None:
            if tool.spec.effects_of(capability).read_only:
                return None
            return f"{name} may change something, so scripts may not call it: call it by itself."
        if any(fnmatchcase(each, pattern) for pattern in self._patterns for each in (name, tool.id)):
            return None
        return f"{name} is not among the tools that scripts may call: call it by itself."


def _to_identifier(name: str) -> str:
    identifier = _NOT_IN_IDENTIFIERS.sub("_", name)
    return f"_{identifier}" if identifier[:1].isdigit() else identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedCallResult:
    """What a tool call returns or raises in a script."""

    value: Any = None
    exception: PythonException | None = None
    message: str = ""


class ScriptCalls:
    """Makes the tool calls of one script, as calls of the script's caller."""

    def __init__(
        self,
        engine: ToolEngine | None,
        context: ToolExecutionContext,
        permissions: ScriptPermissions,
        *,
        max_calls: int,
    ) -> None:
        self._engine, self._permissions = engine, permissions
        self._max_calls = self._remaining = max_calls
        self._context = replace(
            context, caller_id=NAME, caller_type="tool", timeout=DEFAULT_TIMEOUT, tool_call_id=None, approval_id=None
        )
        self.is_untrusted = False
        """Whether a tool returned content from an untrusted source."""
        self.transient_errors: set[str] = set()
        """Messages of failed calls that may succeed later."""

    def has(self, function: str) -> bool:
        return self._permissions.has(function)

    async def make(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NestedCallResult:
        """Call a tool for the script; every failure becomes an exception in the script."""
        try:
            tool, capability = self._permissions.find(function)
            params = _named_arguments(function, capability, args, kwargs)
            self._count_call()
        except CallError as error:
            return _exception_result(error.error_type, str(error))
        assert self._engine is not None, "tools are found in the registry of an engine"
        result = await self._engine.execute_candidate(tool, capability.name, params, self._context)
        self.is_untrusted = self.is_untrusted or bool(result.output.get("untrusted"))
        return self._convert(function, result)

    def _count_call(self) -> None:
        self._remaining -= 1
        if self._remaining < 0:
            raise PermissionDenied(f"A script may make {self._max_calls} tool calls, and this one has made them.")

    def _convert(self, function: str, result: ToolExecutionResult) -> NestedCallResult:
        if not result.is_success:
            message = result.text[:_MAX_ERROR_TEXT]
            if result.metadata.get("transient"):
                self.transient_errors.add(message)
            return _exception_result(result.error_type, message)
        if result.metadata.get("truncated"):  # a script would compute something wrong from a partial result
            size = result.metadata.get("size", 0)
            return _exception_result(
                None, f"{function} returned {size:,} bytes, which is too much: ask for a smaller part."
            )
        output = result.output
        return NestedCallResult(value=output["result"] if set(output) == {"result"} else output)


def _exception_result(error_type: str | None, message: str) -> NestedCallResult:
    return NestedCallResult(exception=_EXCEPTIONS.get(error_type or "", "RuntimeError"), message=message)


def _named_arguments(
    function: str, capability: ToolCapability, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name; positional ones follow the order of the tool's parameters."""
    names = list(capability.schema.get("properties") or ())
    if len(args) > len(names):
        raise InvalidArguments(f"{function}() takes {len(names)} arguments: {', '.join(names) or 'none'}.")
    positional = dict(zip(names, args, strict=False))
    for name in kwargs:
        if name in positional:
            raise InvalidArguments(f"{function}() got two values for {name!r}.")
    return dict(to_plain_json({**positional, **kwargs}, what=f"The input of {function}()"))
