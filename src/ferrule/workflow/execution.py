"""Executing one step of a plan: with the tool it names, then with any similar tool, then by the model's reasoning.

The result lists the attempts. After a call that is not allowed or may have had an effect, nothing else is tried.
Reasoning replaces only read-only tools: it can provide information, but not an effect. A step may also be a question to
the user.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.answer import ASK_USER, NO_TOOL, AttemptLevel, PlanStep, StepAttempt, StepResult
from ferrule.agent.budget import NeedsPerson
from ferrule.agent.calls import HumanReply, RunCall, RunCalls
from ferrule.agent.formats import find_json_values
from ferrule.agent.prompts import explain_denial
from ferrule.catalog.model_schemas import NamedAction
from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.tags import extract_tags
from ferrule.core.call import CALLER_PLANNER, ToolExecutionResult
from ferrule.core.content import as_text, encode_json
from ferrule.core.json_schema import properties_of, resolve_schema
from ferrule.core.messages import Message, ToolCall, Usage, assistant_message, system_message, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.core.spec import Effects, Tool
from ferrule.errors import (
    APPROVAL_REQUIRED,
    PERMISSION_DENIED,
    VALIDATION_ERROR,
    CallError,
    InvalidArguments,
    ModelError,
)
from ferrule.hub import ToolCandidate
from ferrule.hub.synthesis import strategy_tag_of
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory import RunMemory
from ferrule.memory.failures import FailureClass, FailureClassifier
from ferrule.parsing import parse_tool_calls
from ferrule.policy.approvals import ApprovalRequest, Question, digest_of_arguments
from ferrule.policy.provenance import RunOrigins
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import (
    DOES_NOT_KNOW,
    QUESTION_LABEL,
    STEP_ARGUMENTS,
    STEP_ARGUMENTS_AS_JSON,
    STEP_REASONING,
    STEP_TOOL_FAILED,
)
from ferrule.texts.shorten import first_sentence
from ferrule.workflow.plan import find_referenced_steps, resolve_references
from ferrule.workflow.results import StepContext, find_made_up_operand, format_result, text_of_evidence

UNKNOWN_OUTCOME: Final = "unknown_outcome"
MAX_ARGUMENTS_TOKENS: Final = 1000
"""Of a reply with the arguments of one step; some small models find no end."""
MAX_REFILLS: Final = 2
"""How often the model may fill in other arguments after a failed call."""
_FAILURES_OF_ARGUMENTS: Final = (FailureClass.VALIDATION, FailureClass.NOT_FOUND)
_MIN_VALUE_LENGTH: Final = 2
"""A shorter value may occur in an error by chance."""
STOPPED: Final = "stopped"
"""The run reached one of its limits."""


class ExecutionAgent:
    """Executes steps."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        policy: CallPolicy | None = None,
        principal: Principal = PLANNER_PRINCIPAL,
        memory: RunMemory | None = None,
        failing_model: Model | None = None,
        name: str = "execution",
    ) -> None:
        """`policy` decides about the calls of steps instead of the library's. `principal` makes them.

        `model` may raise NeedsPerson where `failing_model` raises a ModelError; by default they are the same. Tools get
        the latter. So do requests after a call: a step that waits is executed again, and would repeat the call.
        """
        self._library, self._model, self._name = library, model, name
        self._failing_model = failing_model or model
        self._policy, self._principal, self._memory = policy, principal, memory
        self._failures = FailureClassifier()
        self._calls: RunCalls | None = None
        self._texts: set[str] = set()
        """The questions and steps whose texts `origins` has."""
        self.permissions = library.engine.permissions(principal, policy)
        self.usage = Usage()

    def has_all_arguments(self, step: PlanStep) -> bool:
        """Return whether a step has all the arguments its tool needs, so that the model need not fill any in."""
        try:
            tool, capability = self._library.engine.registry.find(step.tool_type)
        except CallError:
            return False
        return self._library.engine.check(tool, step.parameters, capability.name).is_valid

    async def execute_step(
        self,
        step: PlanStep | Mapping[str, Any],
        context: StepContext | Mapping[str, Any],
        *,
        attempt: int = 1,
        reply: HumanReply | None = None,
    ) -> StepResult:
        """Execute a step. `reply` is a person's reply; raises NeedsPerson if the step needs one and it is missing.

        Step and context may be dictionaries: a step as models write it, and `question`, `step_results`, `history`.
        """
        started, step, context = time.perf_counter(), PlanStep.of(step), StepContext.of(context)
        if step.made_up_number and not all(result.success for result in context.results.values()):
            # In place of a result that could not be found out, a made-up one would pass as found.
            result = failure_result(step, _made_up_number_error(step, step.made_up_number), VALIDATION_ERROR)
        elif step.tool_type == NO_TOOL:
            result = await self._direct_reasoning(step, context, ())
        elif step.tool_type == ASK_USER:
            result = _answer_question(step, context, reply)
        else:
            approval = reply if isinstance(reply, ApprovalRequest) else None
            result = await self._execute_with_tool(step, context, attempt, approval)
        if result.success:  # with a made-up number, or with the result of a step that has one
            needed = [context.results.get(str(step_id)) for step_id in step.dependencies]
            numbers = [step.made_up_number, *(each.made_up_number for each in needed if each is not None)]
            result.made_up_number = next(filter(None, numbers), "")
        result.seconds = time.perf_counter() - started
        return result

    # With a tool

    def calls_of(self, run_id: str, question: str) -> RunCalls:
        """Return what makes the calls of the steps of a run; steps that belong to no run have an empty id."""
        if self._calls is None or self._calls.run_id != run_id:
            self._texts.clear()
            self._calls = RunCalls(
                run_id,
                question,
                self._library.engine,
                self._library.hub,
                name=self._name,
                caller_type=CALLER_PLANNER,
                principal=self._principal,
                policy=self._policy,
                memory=self._memory,
                model=self._failing_model,
            )
        return self._calls

    def _add_texts(self, origins: RunOrigins, step: PlanStep, context: StepContext) -> None:
        """Tell what decides about the targets of calls which texts the step may use, besides results of its run."""
        if context.question not in self._texts:
            self._texts |= {context.question, context.history}
            for text in (context.question, *context.earlier_questions):
                origins.add_trusted(text)
            if context.history:
                origins.add_untrusted(context.history, "from the conversation before")
        self._texts.add(f"step {step.id}")
        for step_id, result in context.results.items():
            if f"step {step_id}" in self._texts or result.tool_type == NO_TOOL:
                continue
            self._texts.add(f"step {step_id}")
            if result.tool_type == ASK_USER and result.success:
                origins.add_trusted(result.text)
            else:
                origins.add_untrusted(result.text, f"from the result of {result.tool_type} in step {step_id}")

    async def _execute_with_tool(
        self, step: PlanStep, context: StepContext, attempt: int, approval: ApprovalRequest | None
    ) -> StepResult:
        try:
            tool, capability = self._library.engine.registry.find(step.tool_type)
        except CallError as error:
            return failure_result(step, str(error), error.error_type)
        candidate = ToolCandidate.of(tool, capability)
        candidates = self._library.hub.find_by_name(tool.id, capability.name)
        tool_call = ToolCall(name=step.tool_type, id=call_id_of(step, attempt))
        calls = self.calls_of(context.run_id, context.question)
        self._add_texts(calls.origins, step, context)
        targets = [(each.tool, each.capability) for each in candidates]
        call = RunCall(call=tool_call, original=tool_call, target=(tool, capability), candidates=targets)
        result = calls.find_result(call, approval)
        if result is None and approval is not None and approval.state == "refused":
            result = await calls.make(call, approval)
        if result is not None:
            attempts = [_make_attempt("name", tool.id, result)]
            if (ended := _end_of_calls(step, result, tool, candidates, attempts)) is not None:
                ended.arguments = result.arguments or {}
                return ended
        try:
            params = await self._prepare_tool_input(step, candidate, context, approval)
        except CallError as error:
            is_calculation = strategy_tag_of(tool.spec.tags) == "calculate"
            if is_calculation and not any(step.parameters.values()):  # there is nothing to calculate with
                answer = await self._direct_reasoning(step, context, ())
                if answer.success:
                    return answer
            return failure_result(step, str(error), error.error_type)
        call = _replace_arguments(call, params)
        if result is None:
            result = await calls.make(call, approval, request_id=str(step.id))
        attempts = [_make_attempt("name", tool.id, result)]
        refills = 0 if approval is not None else MAX_REFILLS
        while (ended := _end_of_calls(step, result, tool, candidates, attempts)) is None:
            other_params: dict[str, Any] | None = None
            if refills:
                other_params = await self._choose_other_arguments(step, candidate, context, params, result)
            if other_params is None:
                ended = await self._replace_failed_call(
                    step, context, candidate, candidates, calls, call, result, attempts
                )
                break
            params, refills = other_params, refills - 1
            call = _replace_arguments(call, params)
            result = await calls.make(call, request_id=str(step.id))
            attempts.append(_make_attempt("name", tool.id, result))
        # Several candidates that have answered together have no arguments of their own.
        ended.arguments = calls.redact_arguments(call) if result.arguments is None else result.arguments
        return ended

    async def _replace_failed_call(
        self,
        step: PlanStep,
        context: StepContext,
        failed: ToolCandidate,
        candidates: Sequence[ToolCandidate],
        calls: RunCalls,
        call: RunCall,
        result: ToolExecutionResult,
        attempts: list[StepAttempt],
    ) -> StepResult:
        """Return the result of a similar tool, or what the model knows without a tool, or the failure."""
        if not result.is_success and (tag := self._infer_capability_from_step(step, failed, candidates)) is not None:
            hub, tool_call = self._library.hub, replace(call.call, name=tag)
            other = await calls.make(
                RunCall(call=tool_call, original=tool_call),
                request_id=str(step.id),
                execute=lambda tag, params, context, **_: hub.execute_by_capability(
                    tag, params, context, replacing=failed
                ),
            )
            attempts.append(_make_attempt("capability", ", ".join(other.metadata.get("answered_by") or [tag]), other))
            result = other if other.is_success else result
        if result.is_success:
            return _success_result(step, result, failed.tool, attempts)
        if not all(candidate.effects.read_only for candidate in candidates):
            return failure_result(step, result.error or "", result.error_type, attempts)
        answer = await self._direct_reasoning(step, context, attempts)
        return (
            answer if answer.success else failure_result(step, result.error or "", result.error_type, answer.attempts)
        )

    def _is_valid(self, candidate: ToolCandidate, params: Mapping[str, Any]) -> bool:
        return self._library.engine.check(candidate.tool, params, candidate.capability.name).is_valid

    async def _prepare_tool_input(
        self, step: PlanStep, candidate: ToolCandidate, context: StepContext, approval: ApprovalRequest | None
    ) -> dict[str, Any]:
        """Return the arguments that a person has approved, because a model might now choose others, or the plan's.

        The model fills in missing ones from the step's description, and all of them where the plan has none, even if
        the tool requires none.
        """
        is_for_step = approval is not None and approval.tool_id == candidate.name
        if approval is not None and is_for_step and digest_of_arguments(approval.arguments) == approval.digest:
            return dict(approval.arguments)  # otherwise secrets are blanked in them
        try:
            params: dict[str, Any] = resolve_references(step.parameters, context.outputs(), step=step.id)
        except InvalidArguments as error:
            return await self._replace_references(step, candidate, context, error)
        blank = self._library.engine.store.redaction.replacement
        if blank in as_text(step.parameters) or encode_json(blank) in encode_json(params):  # a part of a result may be
            raise InvalidArguments(
                f"Step {step.id} was not executed: it contained a secret, and secrets are not stored while a run waits "
                "or is interrupted. Ask again and include the value itself."
            )
        if not self._is_valid(candidate, params):
            for name, value in params.items():
                # `${1}` means `${1.city}` where it is the value of `city` and an object that has one.
                if isinstance(value, dict) and name in value and find_referenced_steps(step.parameters.get(name)):
                    params = {**params, name: value[name]}
        checked = self._library.engine.check(candidate.tool, params, candidate.capability.name)
        if checked.is_valid:
            if params or not candidate.parameter_names:
                return params
            with suppress(InvalidArguments):  # nothing is required: the tool can be called without
                filled = await self._fill_in_arguments(step, candidate, context, params, "")
                return filled if self._is_valid(candidate, filled) else params
            return params
        problems = " ".join(str(error) for error in checked.errors)
        filled = await self._fill_in_arguments(step, candidate, context, params, problems)
        if not self._is_valid(candidate, filled):
            raise InvalidArguments(f"Step {step.id} lacks arguments that {step.tool_type!r} needs: {problems}")
        return filled

    async def _replace_references(
        self, step: PlanStep, candidate: ToolCandidate, context: StepContext, error: InvalidArguments
    ) -> dict[str, Any]:
        """Arguments that the model takes from the results itself, because the plan refers to what they do not have."""
        if not can_reason(self._model) or not context.results:
            raise error
        literal = {name: value for name, value in step.parameters.items() if not find_referenced_steps(value)}
        filled = await self._fill_in_arguments(step, candidate, context, literal, str(error))
        if not self._is_valid(candidate, filled):
            raise error
        return filled

    async def _choose_other_arguments(
        self,
        step: PlanStep,
        candidate: ToolCandidate,
        context: StepContext,
        params: dict[str, Any],
        result: ToolExecutionResult,
    ) -> dict[str, Any] | None:
        """Other valid arguments for a call that may have failed because of them; None if the model has none.

        The failure is about arguments, or mentions one, or results are calculated with or inserted into texts.
        """
        error = result.error or ""
        texts = {name: value.strip().casefold() for name, value in params.items() if isinstance(value, str)}
        is_about_arguments = self._failures.classify(result) in _FAILURES_OF_ARGUMENTS or any(
            len(text) >= _MIN_VALUE_LENGTH and text in error.casefold() for text in texts.values()
        )
        is_calculation = strategy_tag_of(candidate.tool.spec.tags) == "calculate"
        if not (is_about_arguments or is_calculation or find_referenced_steps([*map(step.parameters.get, texts)])):
            return None
        try:
            filled = await self._fill_in_arguments(step, candidate, context, params, error, is_after_call=True)
        except InvalidArguments:
            return None
        return filled if self._is_valid(candidate, filled) and filled != params else None

    async def _fill_in_arguments(
        self,
        step: PlanStep,
        candidate: ToolCandidate,
        context: StepContext,
        params: dict[str, Any],
        problems: str,
        *,
        is_after_call: bool = False,
    ) -> dict[str, Any]:
        spec, capability = candidate.tool.spec, candidate.capability
        action = NamedAction(name=spec.model_name(capability), spec=spec, capability=capability)
        # After a call, a model that sees the arguments that failed writes them again; the error alone helps.
        problem = problems if is_after_call else f"({as_text(params)}: {problems})" if params else ""
        model = self._failing_model if is_after_call else self._model
        try:
            reply = await model.generate(_build_arguments_request(step, action, context, problem, model))
        except ModelError as error:
            raise InvalidArguments(
                f"Step {step.id} lacks arguments that {step.tool_type!r} needs: {problems} "
                f"The model could not fill them in: {error}"
            ) from error
        self.usage += reply.usage
        calls = reply.tool_calls or parse_tool_calls(reply.text, [action.openai_schema])
        replies = [call.arguments for call in calls if call.error is None]
        if not replies:  # only the arguments, as small models write them
            names = properties_of(resolve_schema(capability.schema, capability.schema)).keys()
            objects = (value for value in find_json_values(reply.text) if isinstance(value, dict))
            replies = [value for value in objects if value and value.keys() <= names]
        arguments = replies[0] if replies else {}
        evidence = text_of_evidence(context.question, context.history, context.results.values())
        if can_reason(model) and (number := find_made_up_operand(arguments, evidence)) is not None:
            raise InvalidArguments(_made_up_number_error(step, number))
        return {**params, **arguments}

    def _infer_capability_from_step(
        self, step: PlanStep, failed: ToolCandidate, candidates: Sequence[ToolCandidate]
    ) -> str | None:
        """Return a tag of other tools that can do the same, if the call is repeatable and they need no approval."""
        if not all(candidate.effects.repeatable for candidate in candidates):
            return None
        tags = [
            *filter(None, [strategy_tag_of(failed.tags)]),
            *failed.tags,
            *extract_tags(failed.name, step.description),
        ]
        for tag in dict.fromkeys(tags):
            others = self._library.hub.find_by_capability(tag, replacing=failed)
            if others and all(
                c.effects.repeatable and self.permissions.decide(c.tool, c.capability).verdict == "allow"
                for c in others
            ):
                return tag
        return None

    # By reasoning

    async def _direct_reasoning(
        self, step: PlanStep, context: StepContext, attempts: Sequence[StepAttempt]
    ) -> StepResult:
        if not can_reason(self._model):
            denied = self.permissions.list_denied(self._library.engine.registry.snapshot())
            problem = f"This needs reasoning, which the model {self._model.name!r} cannot do."
            return _failed_reasoning(step, explain_denial(step.description, denied) or problem, attempts)
        if not attempts and context.results and not any(result.success for result in context.results.values()):
            return _failed_reasoning(step, "The steps before it failed, so there is nothing to reason from.", attempts)
        language = detect_language(context.question)
        prompt = STEP_REASONING[language] + (f" {STEP_TOOL_FAILED[language]}" if attempts else "")
        messages = [system_message(f"{prompt}\n\n{_summarize_context(context)}"), *_build_dialogue(step, context)]
        model = self._failing_model if attempts else self._model
        try:
            reply = await model.generate(ModelRequest(messages=messages))
        except ModelError as error:
            return _failed_reasoning(step, str(error), attempts)
        self.usage += reply.usage
        text = reply.text.strip()
        if not text:
            return _failed_reasoning(step, "The model returned no text.", attempts)
        if attempts and text.casefold().rstrip(".。!！") in DOES_NOT_KNOW:
            return _failed_reasoning(step, "The model does not know it without a tool.", attempts)
        attempts = [*attempts, StepAttempt(level="reasoning", tool=NO_TOOL, success=True)]
        return _make_result(step, attempts, success=True, result=text, output=text)


def _build_arguments_request(
    step: PlanStep, action: NamedAction, context: StepContext, problem: str, model: Model
) -> ModelRequest:
    """Asks for the arguments as JSON, which servers hold a model to; a model that cannot reason calls the tool."""
    language = detect_language(context.question)
    schema = action.openai_schema
    if not can_reason(model):
        prompt = f"{STEP_ARGUMENTS[language]}\n\n{_summarize_context(context)}\n{problem}".rstrip()
        messages = [system_message(prompt), *_build_dialogue(step, context)]
        return ModelRequest(messages=messages, tools=[schema], tool_choice="required", max_tokens=MAX_ARGUMENTS_TOKENS)
    parameters = schema["function"]["parameters"]
    names = []
    for name, inner in properties_of(parameters).items():
        description = inner.get("description") if isinstance(inner, dict) else None
        names.append(f"{name} ({first_sentence(str(description))})" if description else name)
    instruction = STEP_ARGUMENTS_AS_JSON[language].format(
        step=step.description.rstrip(".。"), parameters=", ".join(names)
    )
    prompt = "\n\n".join([_summarize_context(context), f"{problem}\n{instruction}".lstrip()])
    return ModelRequest(messages=[user_message(prompt)], answer_schema=parameters, max_tokens=MAX_ARGUMENTS_TOKENS)


def _made_up_number_error(step: PlanStep, number: str) -> str:
    return f"Step {step.id} was not executed: the number {number} is neither in the question nor in a result."


def _end_of_calls(
    step: PlanStep,
    result: ToolExecutionResult,
    tool: Tool,
    candidates: Sequence[ToolCandidate],
    attempts: Sequence[StepAttempt],
) -> StepResult | None:
    """Return the result of a step after which nothing else may be tried, or None after a failure without an effect."""
    if result.is_success:
        return _success_result(step, result, tool, attempts)
    if result.may_have_taken_effect(*(candidate.effects for candidate in candidates)):
        return failure_result(step, result.error or "", UNKNOWN_OUTCOME, attempts)
    # With edited arguments, another tool would get those that the person has changed.
    is_final = result.error_type in (PERMISSION_DENIED, APPROVAL_REQUIRED) or result.metadata.get("arguments_edited")
    return failure_result(step, result.error or "", result.error_type, attempts) if is_final else None


def _failed_reasoning(step: PlanStep, error: str, attempts: Sequence[StepAttempt]) -> StepResult:
    attempt = StepAttempt(level="reasoning", tool=NO_TOOL, success=False, error=error)
    return failure_result(step, error, None, [*attempts, attempt])


def _answer_question(step: PlanStep, context: StepContext, reply: HumanReply | None) -> StepResult:
    """Return the result of an `ask_user` step: the user's answer. Raises NeedsPerson while there is none."""
    try:
        parameters = resolve_references(step.parameters, context.outputs(), step=step.id)
    except CallError as error:
        return failure_result(step, str(error), error.error_type)
    if isinstance(reply, str):
        attempt = StepAttempt(level="name", tool=ASK_USER, success=True)
        return _make_result(step, [attempt], success=True, result=reply, output=reply)
    options = parameters.get("options")
    raise NeedsPerson(
        Question(
            call_id=str(step.id),
            text=as_text(parameters.get("question") or step.description),
            options=tuple(map(as_text, options)) if isinstance(options, list) else (),
        )
    )


def _replace_arguments(call: RunCall, params: dict[str, Any]) -> RunCall:
    tool_call = replace(call.call, arguments=params)
    return replace(call, call=tool_call, original=tool_call, redacted=None)


def call_id_of(step: PlanStep, attempt: int) -> str:
    """Return the id under which the call of a step is recorded."""
    return f"step-{step.id}-{attempt}"


def effects_of_step(step: PlanStep, registry: ToolRegistry) -> Effects:
    """Return the effects of a step's tool. A step without a tool changes nothing."""
    try:
        tool, capability = registry.find(step.tool_type)
    except CallError:
        return Effects(read_only=True)
    return Effects(read_only=True) if step.tool_type in (NO_TOOL, ASK_USER) else tool.spec.effects_of(capability)


def _make_result(step: PlanStep, attempts: Sequence[StepAttempt], **fields: Any) -> StepResult:
    return StepResult(
        step_id=step.id, description=step.description, tool_type=step.tool_type, attempts=tuple(attempts), **fields
    )


def _success_result(
    step: PlanStep, result: ToolExecutionResult, tool: Tool, attempts: Sequence[StepAttempt]
) -> StepResult:
    output = result.output["result"] if set(result.output) == {"result"} else result.output
    text = format_result(output, name=tool.id, tags=tool.spec.tags)
    return _make_result(step, attempts, success=True, result=text, output=output)


def failure_result(
    step: PlanStep, error: str, error_type: str | None, attempts: Sequence[StepAttempt] = ()
) -> StepResult:
    return _make_result(step, attempts, success=False, error=error, error_type=error_type)


def skipped_result(step: PlanStep, failure: StepResult) -> StepResult:
    """Return a step that was not tried because one it depends on failed, or has no result to change something by."""
    problem = "no tool confirms" if failure.success else "was skipped" if failure.skipped else "failed"
    reason = f"It needs the result of step {failure.step_id}, which {problem}."
    return replace(failure_result(step, reason, "skipped"), skipped=True)


def _make_attempt(level: AttemptLevel, tool: str, result: ToolExecutionResult) -> StepAttempt:
    return StepAttempt(level=level, tool=tool, success=result.is_success, error=result.error, call_id=result.call_id)


def _summarize_context(context: StepContext) -> str:
    """Return the question and the results so far."""
    results = [f"[{r.step_id}] {r.description}: {r.result}" for r in context.results.values() if r.success]
    label = QUESTION_LABEL[detect_language(context.question)]
    parts = [f"{label}{context.question}", context.history, "\n".join(results)]
    return "\n\n".join(part for part in parts if part)


def _build_dialogue(step: PlanStep, context: StepContext) -> list[Message]:
    """Return the results the step needs as earlier turns of a conversation, so that a model knows what `it` means."""
    needed = [context.results[str(step_id)] for step_id in step.dependencies if str(step_id) in context.results]
    if step.waits_for_all:
        needed = [result for result in context.results.values() if result.success]
    turns = [m for r in needed[-3:] for m in (user_message(r.description), assistant_message(r.result))]
    return [*turns, user_message(step.description)]
