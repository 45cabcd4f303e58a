"""The executors every engine has, by the names tools know them by."""

from __future__ import annotations

from ferrule.call import ToolExecutor
from ferrule.executors.calculator.executor import CalculatorExecutor
from ferrule.executors.command.executor import CommandExecutor
from ferrule.executors.echo import EchoExecutor
from ferrule.executors.function.executor import FunctionExecutor
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.endpoint import HttpEndpointExecutor
from ferrule.executors.http.request import HttpRequestExecutor
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.executors.openapi.executor import OpenApiExecutor
from ferrule.executors.skill.executor import SkillExecutor
from ferrule.executors.worker.pool import WorkerPool


def standard_executors(guard: AddressGuard, mcp: McpExecutor) -> dict[str, ToolExecutor]:
    return {
        "echo": EchoExecutor(),
        "calculator": CalculatorExecutor(),
        "http_request": HttpRequestExecutor(guard),
        "http": HttpEndpointExecutor(guard),
        "openapi": OpenApiExecutor(guard),
        "command": CommandExecutor(),
        "skill": SkillExecutor(),
        "mcp": mcp,
        "function": FunctionExecutor(WorkerPool()),
    }
