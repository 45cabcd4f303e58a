"""One governed runtime for every tool a language model may use.

The names below are loaded when they are first used: `import ferrule` itself costs next to nothing, and worker
processes load only what they need.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.agent import Agent, AgentAnswer, AgentState, Approval, ApprovalPolicy, RunLimits
    from ferrule.call import (
        Invocation,
        Progress,
        ToolExecutionContext,
        ToolExecutionResult,
        ToolExecutor,
        ValidationError,
        ValidationResult,
        report_progress,
    )
    from ferrule.concurrency import ConcurrencyConfig, ConcurrencyMetrics, ToolConcurrencyController
    from ferrule.content import Audio, Image, Resource, Text
    from ferrule.describe import DescriptionEngine
    from ferrule.engine import ToolEngine, ToolEngineConfig
    from ferrule.errors import FerruleError, NeedsApproval, Refuse, Retry, SetupError, Transient
    from ferrule.events import ToolEngineEvent, ToolEngineEventType
    from ferrule.executors.http.address_guard import AddressGuard
    from ferrule.executors.mcp.elicitation import Elicitation
    from ferrule.hub import HubConfig, ToolCandidate, ToolHub, hub_result_dict
    from ferrule.library import RegistrationResult, UnifiedToolLibrary
    from ferrule.memory import ExecutionContext, RunMemory
    from ferrule.models import Model, ModelReply, ModelRequest, choose_model
    from ferrule.orchestrator import Orchestrator, OrchestratorResult
    from ferrule.registry import ToolRegistry
    from ferrule.schema import Secret
    from ferrule.sources import ToolConfigLoader, tool
    from ferrule.spec import (
        Effects,
        ExtendedToolSpec,
        FunctionToolSpec,
        Limits,
        MCPServerSpec,
        Tool,
        ToolCapability,
        ToolCategory,
        ToolParameter,
        ToolSpec,
        ToolType,
    )
    from ferrule.store import ToolCallRecord, ToolCallSummary, ToolKnowledgeStore
    from ferrule.subagent import ToolSubAgent
    from ferrule.validation import ToolParameterValidator

__version__ = "0.1.0"

_HOMES = {
    "AddressGuard": "ferrule.executors.http.address_guard",
    "Agent": "ferrule.agent",
    "AgentAnswer": "ferrule.agent",
    "AgentState": "ferrule.agent",
    "Approval": "ferrule.agent",
    "ApprovalPolicy": "ferrule.agent",
    "Audio": "ferrule.content",
    "ConcurrencyConfig": "ferrule.concurrency",
    "ConcurrencyMetrics": "ferrule.concurrency",
    "DescriptionEngine": "ferrule.describe",
    "Effects": "ferrule.spec",
    "Elicitation": "ferrule.executors.mcp.elicitation",
    "ExecutionContext": "ferrule.memory",
    "ExtendedToolSpec": "ferrule.spec",
    "FerruleError": "ferrule.errors",
    "FunctionToolSpec": "ferrule.spec",
    "HubConfig": "ferrule.hub",
    "Image": "ferrule.content",
    "Invocation": "ferrule.call",
    "Limits": "ferrule.spec",
    "MCPServerSpec": "ferrule.spec",
    "Model": "ferrule.models",
    "ModelReply": "ferrule.models",
    "ModelRequest": "ferrule.models",
    "NeedsApproval": "ferrule.errors",
    "Orchestrator": "ferrule.orchestrator",
    "OrchestratorResult": "ferrule.orchestrator",
    "Progress": "ferrule.call",
    "Refuse": "ferrule.errors",
    "RegistrationResult": "ferrule.library",
    "Resource": "ferrule.content",
    "Retry": "ferrule.errors",
    "RunLimits": "ferrule.agent",
    "RunMemory": "ferrule.memory",
    "Secret": "ferrule.schema",
    "SetupError": "ferrule.errors",
    "Text": "ferrule.content",
    "Tool": "ferrule.spec",
    "ToolCallRecord": "ferrule.store",
    "ToolCallSummary": "ferrule.store",
    "ToolCandidate": "ferrule.hub",
    "ToolCapability": "ferrule.spec",
    "ToolCategory": "ferrule.spec",
    "ToolConcurrencyController": "ferrule.concurrency",
    "ToolConfigLoader": "ferrule.sources",
    "ToolEngine": "ferrule.engine",
    "ToolEngineConfig": "ferrule.engine",
    "ToolEngineEvent": "ferrule.events",
    "ToolEngineEventType": "ferrule.events",
    "ToolExecutionContext": "ferrule.call",
    "ToolExecutionResult": "ferrule.call",
    "ToolExecutor": "ferrule.call",
    "ToolHub": "ferrule.hub",
    "ToolKnowledgeStore": "ferrule.store",
    "ToolParameter": "ferrule.spec",
    "ToolParameterValidator": "ferrule.validation",
    "ToolRegistry": "ferrule.registry",
    "ToolSpec": "ferrule.spec",
    "ToolSubAgent": "ferrule.subagent",
    "ToolType": "ferrule.spec",
    "Transient": "ferrule.errors",
    "UnifiedToolLibrary": "ferrule.library",
    "ValidationError": "ferrule.call",
    "ValidationResult": "ferrule.call",
    "choose_model": "ferrule.models",
    "hub_result_dict": "ferrule.hub",
    "report_progress": "ferrule.call",
    "tool": "ferrule.sources",
}

__all__ = [
    "AddressGuard",
    "Agent",
    "AgentAnswer",
    "AgentState",
    "Approval",
    "ApprovalPolicy",
    "Audio",
    "ConcurrencyConfig",
    "ConcurrencyMetrics",
    "DescriptionEngine",
    "Effects",
    "Elicitation",
    "ExecutionContext",
    "ExtendedToolSpec",
    "FerruleError",
    "FunctionToolSpec",
    "HubConfig",
    "Image",
    "Invocation",
    "Limits",
    "MCPServerSpec",
    "Model",
    "ModelReply",
    "ModelRequest",
    "NeedsApproval",
    "Orchestrator",
    "OrchestratorResult",
    "Progress",
    "Refuse",
    "RegistrationResult",
    "Resource",
    "Retry",
    "RunLimits",
    "RunMemory",
    "Secret",
    "SetupError",
    "Text",
    "Tool",
    "ToolCallRecord",
    "ToolCallSummary",
    "ToolCandidate",
    "ToolCapability",
    "ToolCategory",
    "ToolConcurrencyController",
    "ToolConfigLoader",
    "ToolEngine",
    "ToolEngineConfig",
    "ToolEngineEvent",
    "ToolEngineEventType",
    "ToolExecutionContext",
    "ToolExecutionResult",
    "ToolExecutor",
    "ToolHub",
    "ToolKnowledgeStore",
    "ToolParameter",
    "ToolParameterValidator",
    "ToolRegistry",
    "ToolSpec",
    "ToolSubAgent",
    "ToolType",
    "Transient",
    "UnifiedToolLibrary",
    "ValidationError",
    "ValidationResult",
    "choose_model",
    "hub_result_dict",
    "report_progress",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ferrule' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
