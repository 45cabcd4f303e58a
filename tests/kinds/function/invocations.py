"""Building by hand what the engine builds for an executor, and looking at processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.core.call import Invocation, Progress, ToolExecutionContext
from ferrule.core.spec import Isolation, Limits, Tool, ToolCapability, ToolSpec
from tests.kinds.invocations import no_other_tools


class Target:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function


def invocation_of(
    function: Callable[..., Any],
    params: dict[str, Any] | None = None,
    *,
    isolation: Isolation = "auto",
    report: Callable[[Progress], None] = lambda progress: None,
    context: ToolExecutionContext | None = None,
    call_tool: Any = no_other_tools,
) -> Invocation:
    name = getattr(function, "__name__", "it")
    capability = ToolCapability(name=name, description="")
    spec = ToolSpec(tool_id=name, capabilities=[capability], limits=Limits(isolation=isolation))
    return Invocation(
        call_id="call-1",
        tool=Tool(spec=spec, handler="function", target=Target(function)),
        capability=capability,
        params=params or {},
        context=context or ToolExecutionContext(),
        report=report,
        call_tool=call_tool,
    )
