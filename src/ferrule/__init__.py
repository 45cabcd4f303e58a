"""One governed runtime for every tool a language model may use.

The names below are loaded when they are first used: `import ferrule` itself costs next to nothing, and worker
processes load only what they need.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in `_NAMES`, for type checkers
    from ferrule.agent import Agent as Agent
    from ferrule.agent import AgentAnswer as AgentAnswer
    from ferrule.agent import AgentState as AgentState
    from ferrule.agent import Approval as Approval
    from ferrule.agent import RunLimits as RunLimits
    from ferrule.catalog.descriptions import DescriptionEngine as DescriptionEngine
    from ferrule.catalog.registry import ToolRegistry as ToolRegistry
    from ferrule.catalog.validation import ToolParameterValidator as ToolParameterValidator
    from ferrule.concurrency import ConcurrencyConfig as ConcurrencyConfig
    from ferrule.concurrency import ConcurrencyMetrics as ConcurrencyMetrics
    from ferrule.concurrency import ToolConcurrencyController as ToolConcurrencyController
    from ferrule.core.call import Invocation as Invocation
    from ferrule.core.call import Progress as Progress
    from ferrule.core.call import RunContext as RunContext
    from ferrule.core.call import ToolExecutionContext as ToolExecutionContext
    from ferrule.core.call import ToolExecutionResult as ToolExecutionResult
    from ferrule.core.call import ValidationError as ValidationError
    from ferrule.core.call import ValidationResult as ValidationResult
    from ferrule.core.call import emit_event as emit_event
    from ferrule.core.call import report_progress as report_progress
    from ferrule.core.content import Audio as Audio
    from ferrule.core.content import Image as Image
    from ferrule.core.content import Resource as Resource
    from ferrule.core.content import Text as Text
    from ferrule.core.elicitation import Elicitation as Elicitation
    from ferrule.core.events import ToolEngineEvent as ToolEngineEvent
    from ferrule.core.events import ToolEngineEventType as ToolEngineEventType
    from ferrule.core.model import ModelSettings as ModelSettings
    from ferrule.core.permission import Decision as Decision
    from ferrule.core.permission import Principal as Principal
    from ferrule.core.schema import NoTarget as NoTarget
    from ferrule.core.schema import Secret as Secret
    from ferrule.core.schema import Target as Target
    from ferrule.core.spec import Effects as Effects
    from ferrule.core.spec import ExtendedToolSpec as ExtendedToolSpec
    from ferrule.core.spec import FunctionToolSpec as FunctionToolSpec
    from ferrule.core.spec import Limits as Limits
    from ferrule.core.spec import MCPServerSpec as MCPServerSpec
    from ferrule.core.spec import Tool as Tool
    from ferrule.core.spec import ToolCapability as ToolCapability
    from ferrule.core.spec import ToolCategory as ToolCategory
    from ferrule.core.spec import ToolParameter as ToolParameter
    from ferrule.core.spec import ToolSpec as ToolSpec
    from ferrule.core.spec import ToolType as ToolType
    from ferrule.documents import AgentContext as AgentContext
    from ferrule.documents import AgentDecision as AgentDecision
    from ferrule.documents import BaseTool as BaseTool
    from ferrule.documents import ContextAwareReasoningRuntime as ContextAwareReasoningRuntime
    from ferrule.documents import ExecutionResult as ExecutionResult
    from ferrule.documents import HTTPExecutor as HTTPExecutor
    from ferrule.documents import ReasoningRuntime as ReasoningRuntime
    from ferrule.documents import SuperMagic as SuperMagic
    from ferrule.documents import ToolExecutor as ToolExecutor
    from ferrule.documents import ToolResult as ToolResult
    from ferrule.documents import UnifiedDispatcher as UnifiedDispatcher
    from ferrule.documents import create_adaptive_execution_prompt as create_adaptive_execution_prompt
    from ferrule.documents import create_contextual_decision_prompt as create_contextual_decision_prompt
    from ferrule.documents import create_contextual_tool_selection_prompt as create_contextual_tool_selection_prompt
    from ferrule.documents import format_tools_for_prompt as format_tools_for_prompt
    from ferrule.documents import learn_from_failure as learn_from_failure
    from ferrule.documents import update_execution_context as update_execution_context
    from ferrule.engine import ToolEngine as ToolEngine
    from ferrule.engine import ToolEngineConfig as ToolEngineConfig
    from ferrule.errors import FerruleError as FerruleError
    from ferrule.errors import NeedsApproval as NeedsApproval
    from ferrule.errors import Refuse as Refuse
    from ferrule.errors import Retry as Retry
    from ferrule.errors import SetupError as SetupError
    from ferrule.errors import Transient as Transient
    from ferrule.http.guard import AddressGuard as AddressGuard
    from ferrule.hub import HubConfig as HubConfig
    from ferrule.hub import ToolCandidate as ToolCandidate
    from ferrule.hub import ToolHub as ToolHub
    from ferrule.hub import hub_result_dict as hub_result_dict
    from ferrule.kinds.function.tools import tool as tool
    from ferrule.kinds.yaml.tool_file import ToolConfigLoader as ToolConfigLoader
    from ferrule.library.library import RegistrationResult as RegistrationResult
    from ferrule.library.library import UnifiedToolLibrary as UnifiedToolLibrary
    from ferrule.library.subagent import ToolSubAgent as ToolSubAgent
    from ferrule.memory import ExecutionContext as ExecutionContext
    from ferrule.memory import RunMemory as RunMemory
    from ferrule.models import Model as Model
    from ferrule.models import ModelReply as ModelReply
    from ferrule.models import ModelRequest as ModelRequest
    from ferrule.models import choose_model as choose_model
    from ferrule.orchestrator import Orchestrator as Orchestrator
    from ferrule.policy.policy import Policy as Policy
    from ferrule.policy.policy import Rule as Rule
    from ferrule.policy.provenance import ProvenanceRules as ProvenanceRules
    from ferrule.server.mcp import serve_stdio as serve_stdio
    from ferrule.store import ToolCallRecord as ToolCallRecord
    from ferrule.store import ToolCallSummary as ToolCallSummary
    from ferrule.store import ToolKnowledgeStore as ToolKnowledgeStore

__version__ = "0.2.0"


_NAMES = {
    "ferrule.agent": ("Agent", "AgentAnswer", "AgentState", "Approval", "RunLimits"),
    "ferrule.catalog.descriptions": ("DescriptionEngine",),
    "ferrule.catalog.registry": ("ToolRegistry",),
    "ferrule.catalog.validation": ("ToolParameterValidator",),
    "ferrule.concurrency": ("ConcurrencyConfig", "ConcurrencyMetrics", "ToolConcurrencyController"),
    "ferrule.core.call": (
        "Invocation",
        "Progress",
        "RunContext",
        "ToolExecutionContext",
        "ToolExecutionResult",
        "ValidationError",
        "ValidationResult",
        "emit_event",
        "report_progress",
    ),
    "ferrule.core.content": ("Audio", "Image", "Resource", "Text"),
    "ferrule.core.elicitation": ("Elicitation",),
    "ferrule.core.events": ("ToolEngineEvent", "ToolEngineEventType"),
    "ferrule.core.model": ("ModelSettings",),
    "ferrule.core.permission": ("Decision", "Principal"),
    "ferrule.core.schema": ("NoTarget", "Secret", "Target"),
    "ferrule.core.spec": (
        "Effects",
        "ExtendedToolSpec",
        "FunctionToolSpec",
        "Limits",
        "MCPServerSpec",
        "Tool",
        "ToolCapability",
        "ToolCategory",
        "ToolParameter",
        "ToolSpec",
        "ToolType",
    ),
    "ferrule.documents": (
        "AgentContext",
        "AgentDecision",
        "BaseTool",
        "ContextAwareReasoningRuntime",
        "ExecutionResult",
        "HTTPExecutor",
        "ReasoningRuntime",
        "SuperMagic",
        "ToolExecutor",
        "ToolResult",
        "UnifiedDispatcher",
        "create_adaptive_execution_prompt",
        "create_contextual_decision_prompt",
        "create_contextual_tool_selection_prompt",
        "format_tools_for_prompt",
        "learn_from_failure",
        "update_execution_context",
    ),
    "ferrule.engine": ("ToolEngine", "ToolEngineConfig"),
    "ferrule.errors": ("FerruleError", "NeedsApproval", "Refuse", "Retry", "SetupError", "Transient"),
    "ferrule.http.guard": ("AddressGuard",),
    "ferrule.hub": ("HubConfig", "ToolCandidate", "ToolHub", "hub_result_dict"),
    "ferrule.kinds.function.tools": ("tool",),
    "ferrule.kinds.yaml.tool_file": ("ToolConfigLoader",),
    "ferrule.library.library": ("RegistrationResult", "UnifiedToolLibrary"),
    "ferrule.library.subagent": ("ToolSubAgent",),
    "ferrule.memory": ("ExecutionContext", "RunMemory"),
    "ferrule.models": ("Model", "ModelReply", "ModelRequest", "choose_model"),
    "ferrule.orchestrator": ("Orchestrator",),
    "ferrule.policy.policy": ("Policy", "Rule"),
    "ferrule.policy.provenance": ("ProvenanceRules",),
    "ferrule.server.mcp": ("serve_stdio",),
    "ferrule.store": ("ToolCallRecord", "ToolCallSummary", "ToolKnowledgeStore"),
}
"""The names that can be imported from here, by the module that each is loaded from."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "Agent",
    "AgentAnswer",
    "AgentState",
    "Approval",
    "FerruleError",
    "Image",
    "ModelSettings",
    "NeedsApproval",
    "Orchestrator",
    "Policy",
    "Principal",
    "Retry",
    "Rule",
    "RunContext",
    "RunLimits",
    "Secret",
    "SetupError",
    "ToolEngine",
    "ToolExecutionResult",
    "UnifiedToolLibrary",
    "choose_model",
    "emit_event",
    "report_progress",
    "serve_stdio",
    "tool",
]
"""What most programs use. The names of the design documents are in `ferrule.documents.__all__`."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ferrule' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
