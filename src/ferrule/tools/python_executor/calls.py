"""The calls of tools that a script makes: each goes through the engine like any other, as a call of its caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from ferrule.call import DEFAULT_TIMEOUT, ToolExecutionContext, ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import (
    PERMISSION_DENIED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    CallError,
    InvalidArguments,
    PermissionDenied,
)
from ferrule.spec import Tool, ToolCapability
from ferrule.tools.python_executor.plain_value import plain_value
from ferrule.tools.python_executor.reach import NAME, Reach

Raised: TypeAlias = Literal["ValueError", "TimeoutError", "PermissionError", "NameError", "RuntimeError"]

_RAISED: Final[Mapping[str, Raised]] = {
    VALIDATION_ERROR: "ValueError",
    TIMEOUT: "TimeoutError",
    PERMISSION_DENIED: "PermissionError",
    TOOL_NOT_FOUND: "NameError",
}
"""What a script may catch; all else is a RuntimeError."""
_LONGEST: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call of a tool gives in a script."""

    value: Any = None
    raises: Raised | None = None
    """The exception it raises instead."""
    message: str = ""


class ScriptCalls:
    """Makes the calls of one script."""

    def __init__(self, engine: ToolEngine | None, context: ToolExecutionContext, reach: Reach, *, most: int) -> None:
        self._engine, self._reach, self._left, self._most = engine, reach, most, most
        # A person who agreed to the script has not agreed to what it calls.
        self._context = replace(
            context, caller_id=NAME, caller_type="tool", timeout=DEFAULT_TIMEOUT, tool_call_id=None, approved=False
        )
        self.is_untrusted = False
        """Whether a tool gave what strangers have written."""
        self.transient: set[str] = set()
        """What failed calls said that may succeed later."""

    def has(self, function: str) -> bool:
        return self._reach.has(function)

    def names(self) -> list[str]:
        return self._reach.names()

    async def make(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        """Call a tool for the script; whatever goes wrong is raised in it."""
        try:
            tool, capability = self._reach.find(function)
            params = _named(function, capability, args, kwargs)
            self._count()
        except CallError as error:
            return _raise(error.error_type, str(error))
        result = await self._call(tool, capability, params)
        self.is_untrusted = self.is_untrusted or bool(result.output.get("untrusted"))
        return self._answer(function, result)

    async def _call(self, tool: Tool, capability: ToolCapability, params: dict[str, Any]) -> ToolExecutionResult:
        assert self._engine is not None, "what is reached is in the registry of an engine"
        return await self._engine.execute_candidate(tool, capability.name, params, self._context)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PermissionDenied(f"A script may make {self._most} calls of tools, and this one has made them.")

    def _answer(self, function: str, result: ToolExecutionResult) -> Answer:
        if not result.is_success:
            message = result.text[:_LONGEST]
            if result.metadata.get("transient"):
                self.transient.add(message)
            return _raise(result.error_type, message)
        if result.metadata.get("truncated"):  # half of a result is no result to compute with
            size = result.metadata.get("size", 0)
            return _raise(None, f"{function} gave {size:,} bytes, which is too much at once: ask for a smaller part.")
        output = result.output
        return Answer(value=output["result"] if set(output) == {"result"} else output)


def _raise(error_type: str | None, message: str) -> Answer:
    return Answer(raises=_RAISED.get(error_type or "", "RuntimeError"), message=message)


def _named(function: str, capability: ToolCapability, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name: what stands without one is what the tool asks for first."""
    names = list(capability.schema.get("properties") or ())
    if len(args) > len(names):
        raise InvalidArguments(f"{function}() takes {len(names)} arguments: {', '.join(names) or 'none'}.")
    given = dict(zip(names, args, strict=False))
    for name in kwargs:
        if name in given:
            raise InvalidArguments(f"{function}() got two values for {name!r}.")
    params = plain_value({**given, **kwargs}, what=f"What {function}() is given")
    return dict(params)
