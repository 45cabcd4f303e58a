"""Building by hand what the engine builds for an executor."""

from typing import Any

from ferrule.core.call import Invocation, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.spec import Tool, ToolCapability, ToolSpec


async def no_other_tools(tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult:
    raise AssertionError(f"nobody expected a call of {tool_name!r}")


def invocation(
    params: dict[str, Any], config: dict[str, Any] | None = None, reports: list[Progress] | None = None
) -> Invocation:
    """A call of a tool with this `implementation_config`; its progress is added to `reports`."""
    reported: list[Progress] = [] if reports is None else reports
    capability = ToolCapability(name="it", description="")
    spec = ToolSpec(tool_id="it", capabilities=[capability], implementation_config=config or {})
    return Invocation(
        call_id="call-1",
        tool=Tool(spec=spec, handler="it"),
        capability=capability,
        params=params,
        context=ToolExecutionContext(),
        report=reported.append,
        call_tool=no_other_tools,
    )
