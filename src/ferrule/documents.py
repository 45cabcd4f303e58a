"""Names of the design documents for things that have another name in Ferrule, and the two runtimes of 001 §8.

All their other names can be imported from here too; `docs/design-documents.md` maps each. The runtimes are a planning
agent (`ReasoningRuntime`) and an agent whose decisions are methods for subclasses (`ContextAwareReasoningRuntime`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Self

import ferrule
from ferrule.agent.agent import Agent
from ferrule.agent.agent import Agent as SuperMagic
from ferrule.agent.answer import ASK_USER, NO_TOOL, ReadableFields
from ferrule.agent.budget import RunLimits
from ferrule.agent.decisions import AgentDecision, parse_decision
from ferrule.agent.formats import DecisionFormat, ParsedReply, convert_decision, find_json_values
from ferrule.agent.prompts import adaptive_execution_prompt as create_adaptive_execution_prompt
from ferrule.agent.prompts import contextual_decision_prompt as create_contextual_decision_prompt
from ferrule.agent.prompts import contextual_tool_selection_prompt as create_contextual_tool_selection_prompt
from ferrule.agent.prompts import execution_status, failure_summary, format_tools_for_prompt, learning_summary
from ferrule.agent.run import Run
from ferrule.agent.toolbox import AgentLibrary, ToolOffer, register_functions
from ferrule.catalog.descriptions import describe_in_one_line
from ferrule.core.call import ToolExecutionContext as AgentContext
from ferrule.core.call import ToolExecutionResult as ExecutionResult
from ferrule.core.call import ToolExecutionResult as ToolResult
from ferrule.core.messages import Usage, user_message
from ferrule.core.model import Model, ModelReply, ModelRequest, TextSink, can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.spec import ToolSpec
from ferrule.engine.engine import ToolEngine as UnifiedDispatcher
from ferrule.errors import (
    EXECUTOR_NOT_FOUND,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    TOOL_NOT_FOUND,
    ModelError,
    SetupError,
)
from ferrule.kinds.builtin import CalculatorExecutor, EchoExecutor
from ferrule.kinds.http_request import HttpRequestExecutor as HTTPExecutor
from ferrule.library.library import RegistrationResult, UnifiedToolLibrary
from ferrule.memory.context import ExecutionContext
from ferrule.models.choose import choose_model
from ferrule.models.offline import OfflineModel
from ferrule.texts.description_labels import description_texts
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import TOOL_REQUIREMENTS, TOOL_SELECTION
from ferrule.workflow.plan import resolve_references
from ferrule.workflow.planning import PlanningAgent

__all__ = [
    "AgentContext",
    "AgentDecision",
    "CalculatorExecutor",
    "EchoExecutor",
    "ExecutionResult",
    "HTTPExecutor",
    "PlannedCall",
    "SuperMagic",
    "ToolExecutor",
    "ToolResult",
    "UnifiedDispatcher",
    "create_adaptive_execution_prompt",
    "create_contextual_decision_prompt",
    "create_contextual_tool_selection_prompt",
    "format_tools_for_prompt",
]
__all__ += sorted({*ferrule._MODULES} - {*__all__})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if ferrule._MODULES.get(name, __name__) != __name__:
        return getattr(ferrule, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class BaseTool:
    """A tool as an object: its name, its description, and the method that does it.

    Anything with these three can be registered, of this class or not. `parameters` is its JSON Schema, if the signature
    of `execute` does not say enough; `cleanup` is called when the runs that used it have ended, and when the tool ends,
    because it may have been called outside of runs.
    """

    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    execute: Callable[..., Any]


class CollectionExecutor:
    """Calls the tools of a collection by their names (003). A class for a kind of tool overrides `execute` (002)."""

    @cached_property
    def _library(self) -> AgentLibrary:
        return AgentLibrary(())

    def set_tool_collection(self, tools: Collection[Any]) -> None:
        """Replace the tools: functions, tool objects or names of bundled tools."""
        self._library = AgentLibrary(tools)
        register_functions(self._library.library, tools)

    async def execute(self, tool_name: Any, params: Mapping[str, Any] | None = None, /) -> Any:
        """Call a tool. Whatever goes wrong is in the result."""
        async with self._library:
            return await self._library.library.execute_tool(tool_name, params)


ToolExecutor = CollectionExecutor

# Contexts (001 §3.2)


async def update_execution_context(
    context: ExecutionContext, decision: AgentDecision | Mapping[str, Any], result: ExecutionResult
) -> None:
    """Add a step to a context and, if it failed, the patterns of its failure."""
    step = AgentDecision.of(decision)
    own = _as_context(context)
    own.record(str(step.tool_id), step.action, step.parameters, result)
    if own is not context:
        context.current_observations = list(own.current_observations)


async def learn_from_failure(context: ExecutionContext, failure: Mapping[str, Any]) -> None:
    """Add the patterns of a failed attempt to a context."""
    _as_context(context).learn_from_failure(failure)


_CONTEXT_FIELDS: Final = tuple(f.name for f in fields(ExecutionContext) if f.name != "memory")


def _as_context(context: Any) -> ExecutionContext:
    """Return the context. An object with the documented fields gets a context that shares them."""
    if isinstance(context, ExecutionContext):
        return context
    return ExecutionContext(**{name: getattr(context, name) for name in _CONTEXT_FIELDS if hasattr(context, name)})


# Plans of calls (001 §3.1, §6.4, §8.1)


@dataclass(slots=True, kw_only=True)
class PlannedCall(ReadableFields):
    """One step of an execution plan. Fields can also be read as `step["tool_id"]`."""

    tool_id: str
    action: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """They may refer to results of earlier steps: `${1}`."""
    description: str = ""
    id: str = ""


class ReasoningRuntime:
    """A library and a model that plans calls of its tools (001 §8.1). Every method may be overridden."""

    max_retries = 3
    """After so many failures of a tool, another one is suggested."""
    max_iterations = 20
    _needs_reasoning = False

    def __init__(self, agent_model: Any = None, *, tool_library: UnifiedToolLibrary | None = None) -> None:
        """`agent_model` may also be set later: a `Model`, or anything whose `generate` takes and returns a text."""
        self.tool_library = tool_library or UnifiedToolLibrary()
        self.agent_model = agent_model

    async def initialize(self) -> None:
        await self.tool_library.initialize()
        await self.register_builtin_tools()

    async def aclose(self) -> None:
        await self.tool_library.aclose()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Tools: a library has the bundled ones, so registering them says whether they can be called.

    async def register_builtin_tools(self) -> None:
        await self.register_browser_tool()
        await self.register_python_executor()
        await self.register_file_processor()

    async def register_browser_tool(self) -> RegistrationResult:
        return await self._check_bundled("browser_navigator")

    async def register_python_executor(self) -> RegistrationResult:
        return await self._check_bundled("python_executor")

    async def register_file_processor(self) -> RegistrationResult:
        return await self._check_bundled("file_processor")

    async def _check_bundled(self, tool_id: str) -> RegistrationResult:
        is_usable = await self.tool_library.get_tool_by_id(tool_id) is not None
        reason = (await self.tool_library.get_unavailable_tools()).get(tool_id, "it is not installed")
        return RegistrationResult(success=is_usable, tool_id=tool_id, error=None if is_usable else reason)

    # Stages of migration (001 §10.2)

    async def enable_agent_decision_making(self) -> None:
        """Let the model choose tools: the one that was set, or the one that the environment names."""
        self.agent_model = choose_model() if self.agent_model is None else self.agent_model

    async def disable_hardcoded_matching(self) -> None:
        """Refuse to choose tools by the words of a question, as the offline model does."""
        self._needs_reasoning = True
        self._require_model()

    # Choosing tools and planning calls

    async def execute_user_query(self, user_query: str) -> list[ExecutionResult]:
        """Plan calls for a question and make them, until one of them fails."""
        description = await self.tool_library.get_all_tools_description_for_agent()
        results: list[ExecutionResult] = []
        outputs: dict[str, Any] = {}
        for step in await self.agent_analyze_and_plan(user_query, description):
            parameters = resolve_references(step["parameters"], outputs, step=step["id"])
            result = await self.tool_library.execute_tool(step["tool_id"], step["action"], parameters)
            results.append(result)
            outputs[step["id"]] = result.output
            if not await self.agent_analyze_result(result):
                break
        return results

    async def agent_analyze_and_plan(self, query: str, tools_desc: str = "") -> Sequence[Any]:
        return await self.create_execution_plan(query)

    async def analyze_tool_requirements(self, user_query: str) -> list[str]:
        """Ask the model what tools must be able to do for a task. Without a thinking model, return the task."""
        if not can_reason(self._require_model()):
            return [user_query]
        text = await self._generate(TOOL_REQUIREMENTS[detect_language(user_query)].format(task=user_query))
        return _find_texts(text) or [user_query]

    async def select_tools(
        self, user_query: str, tool_requirements: Any = (), available_tools: Sequence[ToolSpec] | None = None
    ) -> list[ToolSpec]:
        """Choose the tools for a task, among the available ones or else among all.

        `tool_requirements` come from `analyze_tool_requirements`, or are a text that describes the tools.
        """
        tools = await self.tool_library.get_all_tools() if available_tools is None else list(available_tools)
        requirements = [] if isinstance(tool_requirements, str) else [str(item) for item in tool_requirements]
        by_id = {spec.tool_id: spec for spec in tools}
        if can_reason(self._require_model()):
            language = detect_language(user_query)
            prompt = TOOL_SELECTION[language].format(
                task=user_query,
                requirements="\n".join(f"- {item}" for item in requirements),
                tools="\n".join(describe_in_one_line(spec, description_texts(language)) for spec in tools),
            )
            chosen = [by_id[name] for name in _find_texts(await self._generate(prompt)) if name in by_id]
            if chosen:
                return chosen
        texts = requirements or [user_query]
        hits = [spec.tool_id for text in texts for spec in await self.tool_library.search_tools(text)]
        return [by_id[tool_id] for tool_id in dict.fromkeys(hits) if tool_id in by_id]

    async def create_execution_plan(
        self, user_query: str, selected_tools: Sequence[ToolSpec | str] | None = None
    ) -> list[PlannedCall]:
        """Plan the calls for a task, with the selected tools or else with all."""
        names = None
        if selected_tools is not None:
            names = [tool.tool_id if isinstance(tool, ToolSpec) else tool for tool in selected_tools]
        planner = PlanningAgent(self.tool_library, self._require_model(), tools=names)
        calls = []
        for step in (await planner.decompose_task(user_query)).steps:
            if step.tool_type not in (NO_TOOL, ASK_USER):
                tool, capability = self.tool_library.engine.registry.find(step.tool_type)
                parameters, number = dict(step.parameters), str(step.id)
                fields: dict[str, Any] = {"parameters": parameters, "description": step.description, "id": number}
                calls.append(PlannedCall(tool_id=tool.id, action=capability.name, **fields))
        return calls

    def parse_execution_plan(self, response: str | ModelReply) -> list[PlannedCall]:
        """Read the calls in a model's reply: a JSON list of steps with `tool_id`, `action` and `parameters`."""
        for value in find_json_values(_text_of(response)):
            steps = value.get("steps", [value]) if isinstance(value, dict) else value
            if isinstance(steps, list) and steps and all(isinstance(step, dict) for step in steps):
                decisions = enumerate((AgentDecision.of({**step, "action_type": "execute_tool"}) for step in steps), 1)
                return [
                    PlannedCall(tool_id=str(d.tool_id), action=d.action, parameters=d.parameters, id=str(number))
                    for number, d in decisions
                ]
        raise ModelError("There is no plan in the reply. Write a JSON list of steps with tool_id, action, parameters.")

    async def agent_analyze_result(self, result: ExecutionResult) -> bool:
        """Return whether to go on with the plan: until a call fails."""
        return result.success

    async def analyze_result(self, result: ExecutionResult) -> bool:
        return await self.agent_analyze_result(result)

    async def analyze_result_and_decide_next(self, result: ExecutionResult) -> AgentDecision:
        """Decide what to do after a call: go on with the plan, switch to another tool, or replan."""
        if result.success:
            return AgentDecision("execute_tool", reasoning="The call succeeded: go on with the plan.")
        is_permanent = result.error_type in (TOOL_NOT_FOUND, EXECUTOR_NOT_FOUND, PERMISSION_DENIED, KNOWN_FAILURE)
        reason = f"{result.tool_name} failed: {result.error}"
        return AgentDecision("switch_tool" if is_permanent else "replan", tool_id=result.tool_name, reasoning=reason)

    # Decisions by context (001 §3.2, §8.2)

    async def make_contextual_decision(self, context: ExecutionContext) -> AgentDecision:
        """Decide what to do next, by everything that has happened so far."""
        if await self.should_complete_task(context):
            return AgentDecision("complete")
        if await self.should_replan(context):
            return AgentDecision("replan")
        prompt, correction = self.create_contextual_decision_prompt(context), getattr(context, "correction", "")
        context.correction = ""
        response = await self._generate(f"{prompt}\n\n{correction}".rstrip())
        return await self.validate_decision(self.parse_agent_decision(response), context)

    async def should_complete_task(self, context: ExecutionContext) -> bool:
        """Return whether to end without asking the model: after `max_iterations` steps."""
        return len(context.executed_steps) >= self.max_iterations

    async def should_replan(self, context: ExecutionContext) -> bool:
        """Return whether to replan without asking the model: once after `max_retries` failures in a row."""
        count = len(context.executed_steps)
        last = context.executed_steps[-self.max_retries :]
        has_failed = len(last) == self.max_retries and not any(step["success"] for step in last)
        return has_failed and not any(step.get("made_after") == count for step in context.original_plan)

    def create_contextual_decision_prompt(self, context: ExecutionContext) -> str:
        return create_contextual_decision_prompt(
            _as_context(context),
            status=self.analyze_execution_status(context),
            failures=self.build_failure_summary(context),
            learned=self.build_learning_summary(context),
        )

    def analyze_execution_status(self, context: ExecutionContext) -> str:
        return execution_status(_as_context(context))

    def build_failure_summary(self, context: ExecutionContext) -> str:
        return failure_summary(_as_context(context))

    def build_learning_summary(self, context: ExecutionContext) -> str:
        return learning_summary(_as_context(context))

    def parse_agent_decision(self, response: str | ModelReply) -> AgentDecision:
        """Read the decision in a model's reply. Raises ModelError that says what is missing."""
        return parse_decision(_text_of(response))

    async def validate_decision(
        self, decision: AgentDecision | Mapping[str, Any], context: ExecutionContext
    ) -> AgentDecision:
        """Return the decision to carry out. Raises ModelError if it names a tool that is not available."""
        checked = AgentDecision.of(decision)
        tool_id, names = str(checked.tool_id), [spec.tool_id for spec in context.available_tools]
        is_known = tool_id in names or self.tool_library.engine.registry.snapshot().may_contain(tool_id)
        if checked.action_type == "execute_tool" and not is_known:
            raise ModelError(f"There is no tool {tool_id!r} here.{did_you_mean(tool_id, names)}")
        return checked

    async def replan_with_context(self, context: ExecutionContext) -> list[dict[str, Any]]:
        """Make a new plan for the rest of the task, which becomes the plan of the context."""
        own, count = _as_context(context), len(context.executed_steps)
        parts = [own.task_description, failure_summary(own), learning_summary(own)]
        plan = await self.create_execution_plan("\n\n".join(filter(None, parts)))
        steps = [{name: step[name] for name in ("tool_id", "action", "parameters", "description")} for step in plan]
        context.original_plan = [{**step, "made_after": count} for step in steps or [{"description": "replanned"}]]
        return context.original_plan

    async def select_alternative_tool(self, context: ExecutionContext) -> ToolSpec:
        """Find a tool to use instead of the one that failed last. Raises ModelError if nothing replaces it."""
        own = _as_context(context)
        failed = str(own.failed_attempts[-1]["tool_id"]) if own.failed_attempts else ""
        tools = await self.tool_library.get_alternative_tools(failed, own.task_description, own)
        if not tools:
            raise ModelError(f"No other tool can do what {failed!r} could not: change its parameters, or complete.")
        return tools[0]

    async def switch_to_alternative_tool(self, context: ExecutionContext, decision: AgentDecision) -> None:
        """Let a decision to switch name a tool: its own if there is one, or what replaces the tool that failed last."""
        failed = [attempt["tool_id"] for attempt in context.failed_attempts[-1:]]
        tools = self.tool_library.engine.registry.snapshot()
        if decision.tool_id is not None and tools.may_contain(decision.tool_id) and decision.tool_id not in failed:
            return
        decision.tool_id = (await self.select_alternative_tool(context)).tool_id
        decision.action = None

    async def update_execution_context(
        self, context: ExecutionContext, decision: AgentDecision | Mapping[str, Any], result: ExecutionResult
    ) -> None:
        await update_execution_context(context, decision, result)

    async def handle_execution_failure(
        self, context: ExecutionContext, decision: AgentDecision | Mapping[str, Any], result: ExecutionResult
    ) -> None:
        """Note other parameters for a call that failed or, after `max_retries` failures of its tool, other tools."""
        step, own = AgentDecision.of(decision), _as_context(context)
        tool_id = str(step.tool_id)
        if own.count_failures(tool_id) >= self.max_retries:
            await self.suggest_tool_switch(context, tool_id)
            return
        adjusted = await self.tool_library.suggest_parameter_adjustments(
            tool_id, step.action, step.parameters, result.error_message or "", own.observation_texts
        )
        if adjusted != step.parameters:
            own.add_adjustment(tool_id, step.parameters, adjusted, result.error_message or "")

    async def suggest_tool_switch(self, context: ExecutionContext, failed_tool_id: str) -> None:
        """Note the tools that may do what one could not."""
        own = _as_context(context)
        tools = await self.tool_library.get_alternative_tools(failed_tool_id, own.task_description, own)
        if tools:
            reason = f"{failed_tool_id} failed {self.max_retries} times"
            own.add_switch(failed_tool_id, [tool.tool_id for tool in tools], reason)

    async def handle_unexpected_error(self, context: ExecutionContext, error: Exception) -> None:
        """Let the model be asked again after its own error, and tell it. Every other error ends the run."""
        if not isinstance(error, ModelError):
            raise error
        context.correction = str(error)

    def generate_final_result(self, context: ExecutionContext) -> dict[str, Any]:
        """Return the result of a run in the form of 000 §7."""
        own = _as_context(context)
        texts = own.observation_texts
        success = bool(texts) or bool(own.final_answer)
        error = str(own.failed_attempts[-1]["error"]) if own.failed_attempts and not success else None
        return {
            "success": success,
            "result": own.final_answer or (texts[-1] if texts else None),
            "error": error,
            "executed_steps": own.executed_steps,
            "failed_attempts": own.failed_attempts,
        }

    # The model

    def _require_model(self) -> Model:
        model = OfflineModel() if self.agent_model is None else self.agent_model
        if self._needs_reasoning and not can_reason(model):
            raise SetupError(
                "Choosing tools by words is disabled, and there is no model that can think: set agent_model, or call "
                "enable_agent_decision_making() with a model in the environment."
            )
        return model if hasattr(model, "name") else _TextModel(model)

    async def _generate(self, prompt: str) -> str:
        return (await self._require_model().generate(ModelRequest.of(prompt))).text


class ContextAwareReasoningRuntime(ReasoningRuntime):
    """An agent that decides by context (001 §8.2): its decisions are the methods of this class."""

    async def execute_user_query_with_context(self, user_query: str) -> Any:
        """Do a task, and return `generate_final_result` of its context."""
        decider = _Decider(self)
        limits = RunLimits(turns=self.max_iterations, max_retries=self.max_retries)
        agent = Agent(self.tool_library, decider, name="runtime", style=decider, limits=limits)
        answer = await agent.run(user_query)
        context = decider.context or ExecutionContext(user_query)
        context.final_answer = answer.text if answer.is_finished else ""
        result: Any = self.generate_final_result(context)
        if isinstance(result, dict) and not result.get("success") and not result.get("error"):
            result["error"] = answer.text  # no call has failed: the report of the run says why it stopped
        return result


class _Decider(DecisionFormat):
    """The model and the reply format of a run whose decisions a runtime makes."""

    name = "runtime"

    def __init__(self, runtime: ContextAwareReasoningRuntime) -> None:
        self._runtime = runtime
        self.context: ExecutionContext | None = None
        self._tools: list[ToolSpec] = []
        self._decision: AgentDecision | None = None
        self._failures = 0

    def request(self, run: Run, offer: ToolOffer, *, may_call: bool = True) -> ModelRequest:
        self.context, self._tools = run.context, self._tools or run.context.available_tools
        run.context.available_tools = self.list_tools(run, offer, self._tools)
        last = run.messages[-1]
        is_correction = last["role"] == "user" and last["content"] != run.task
        if is_correction and not run.context.correction:
            run.context.correction = str(last["content"])
        return ModelRequest(messages=[*run.messages[:1], user_message(run.task)])

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        context, runtime, last = self.context, self._runtime, self._decision
        assert context is not None, "request() comes first"
        count, self._failures = self._failures, len(context.failed_attempts)
        try:
            if last is not None and self._failures > count:
                failed = context.failed_attempts[-1]
                error, kind = failed["error"], failed["error_type"]
                result = ExecutionResult(False, failed["tool_id"], error=error, error_type=kind)
                await runtime.handle_execution_failure(context, last, result)
            decision = self._decision = AgentDecision.of(await runtime.make_contextual_decision(context))
            if decision.action_type == "replan":
                await runtime.replan_with_context(context)
                decision.reasoning = ""
            elif decision.action_type == "switch_tool":
                await runtime.switch_to_alternative_tool(context, decision)
        except Exception as error:
            self._decision = None
            await runtime.handle_unexpected_error(context, error)
            return ModelReply(text=str(error), usage=Usage(requests=1))
        return ModelReply(text=decision.reasoning or decision.action_type, usage=Usage(requests=1))

    def parse(self, run: Run, reply: ModelReply, offer: ToolOffer) -> ParsedReply:
        if self._decision is None:
            return ParsedReply(text=reply.text, correction=reply.text)
        return convert_decision(self._decision, run, offer)


class _TextModel:
    """A model whose `generate` takes and returns a text."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name = type(model).__name__

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        prompt = "\n\n".join(str(message.get("content") or "") for message in request.messages)
        reply = await self._model.generate(prompt)
        return reply if isinstance(reply, ModelReply) else ModelReply(text=str(reply), usage=Usage(requests=1))


def _text_of(response: str | ModelReply) -> str:
    return response.text if isinstance(response, ModelReply) else str(response)


def _find_texts(text: str) -> list[str]:
    """Return the texts of the first JSON list in a reply."""
    for value in find_json_values(text):
        items = next((v for v in value.values() if isinstance(v, list)), []) if isinstance(value, dict) else value
        if texts := [item for item in items if isinstance(item, str)]:
            return texts
    return []
