"""Creating and revising the plan for a question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.answer import ASK_USER, NO_TOOL, Plan, PlanStep, StepId, StepResult
from ferrule.agent.formats import find_json_values
from ferrule.agent.toolbox import Toolbox, ToolOffer
from ferrule.core.content import copy_json
from ferrule.core.json_schema import resolve_schema
from ferrule.core.messages import Message, Usage, assistant_message, system_message, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.core.permission import PLANNER_PRINCIPAL, CallPolicy, Principal
from ferrule.core.spec import ToolCapability, parse_parameters
from ferrule.errors import FerruleError, ModelError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import (
    FINAL_STEPS,
    MADE_UP_NUMBER,
    MORE_TOOLS,
    NOT_A_PLAN,
    PLAN_RULES,
    PLANNER,
    REPLACED_STEPS,
    REVISION,
)
from ferrule.texts.shorten import first_sentence
from ferrule.workflow.plan import PLAN_SCHEMA, find_plan_errors, parse_plan, single_step_plan
from ferrule.workflow.results import find_made_up_operand, text_of_evidence

CORE_TOOLS: Final = ("search_web", "calculate", "calculator", "get_time", "get_conversation_history")
"""Always shown."""
MAX_OTHER_TOOLS: Final = 10
MAX_VALUES_IN_PROMPT: Final = 10
"""Of a parameter with a list of values."""
MAX_NAMES_IN_SCHEMA: Final = 100
"""With more tools, the schema of a plan does not list them."""


_STEPS_SCHEMA: Final = PLAN_SCHEMA["properties"]["steps"]
_REVISION_SCHEMA: Final = {
    **PLAN_SCHEMA,
    "properties": {**PLAN_SCHEMA["properties"], "steps": {**_STEPS_SCHEMA, "minItems": 0}},
}
"""A revision may have no steps, if nothing more can be tried."""


def make_planning_toolbox(
    library: UnifiedToolLibrary,
    principal: Principal = PLANNER_PRINCIPAL,
    policy: CallPolicy | None = None,
    core: Sequence[str] = CORE_TOOLS,
) -> Toolbox:
    """Return the tools that plans may use."""
    return Toolbox(library, principal=principal, policy=policy, core=core, budget_tokens=8_000, own=False)


class NoPlan(FerruleError):
    """The model wrote no plan, so the question must be answered in another way."""

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.usage = usage


class PlanningAgent:
    """Breaks questions down into steps."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        *,
        core_tools: Sequence[str] = CORE_TOOLS,
        tools: Collection[str] | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        """`tools` restricts plans to these tools. A `toolbox` can be shared by many runs."""
        principal = PLANNER_PRINCIPAL if tools is None else replace(PLANNER_PRINCIPAL, tools=frozenset(tools))
        self._library, self._model, self._core = library, model, tuple(core_tools)
        self._toolbox = toolbox or make_planning_toolbox(library, principal, core=self._core)
        self._permissions = self._toolbox.permissions
        self.usage = Usage()

    def set_available_tools(self, tool_names: Collection[str]) -> None:
        """Restrict plans to these tools, of those that the agent may use at all."""
        principal, policy = self._permissions.principal.restricted_to(tool_names), self._permissions.policy
        self._toolbox = make_planning_toolbox(self._library, principal, policy, self._core)

    @property
    def can_revise(self) -> bool:
        """Return whether the model can reason. A model that cannot would only repeat the plan."""
        return can_reason(self._model)

    async def decompose_task(self, question: str, *, history: str = "", is_required: bool = False) -> Plan:
        """Create the plan for a question. If the model writes no valid plan, it is asked once more.

        After that, an invalid plan is repaired. If there is none to repair, the question becomes a single step, or
        NoPlan is raised if a plan `is_required`.
        """
        await self._toolbox.prepare(question)
        offer = self._toolbox.offer(question)
        messages = self._build_decomposition_prompt(question, offer, history)
        repaired: Plan | None = None
        problem, is_model_down = "", False
        for _ in range(2):
            try:
                text = await self._ask_model(messages, offer)
            except ModelError as error:
                problem, is_model_down = str(error), True
                break
            plan, problem = _parse_plan_text(text, offer)
            if plan is not None:
                plan, made_up = _mark_made_up_numbers(plan, text_of_evidence(question, history, ()), offer)
                problem = problem or made_up
                if not problem:
                    return plan
            repaired = plan or repaired
            messages = [*messages, assistant_message(text), user_message(NOT_A_PLAN.format(problem=problem))]
        if repaired is not None:
            return replace(repaired, problems=(f"The plan was invalid: {problem}", *repaired.problems))
        if is_required and not is_model_down:
            raise NoPlan(f"The model wrote no plan: {problem}", usage=self.usage)
        plan = single_step_plan(question)
        return Plan(steps=plan.steps, parallel_groups=plan.parallel_groups, problems=(f"There was no plan: {problem}",))

    async def revise(
        self,
        question: str,
        plan: Plan,
        results: Mapping[str, StepResult],
        started: Sequence[PlanStep],
        *,
        bad: Sequence[StepId],
        once: Sequence[PlanStep],
        history: str = "",
    ) -> Plan:
        """Replace the steps that have not started, because of the `bad` results.

        The `started` steps stay, and no new step repeats one in `once`. If the model has no better plan, the old one
        continues.
        """
        considered = replace(plan, revised_for=tuple(bad))
        offer = self._toolbox.offer(question)
        messages = [
            *self._build_decomposition_prompt(question, offer, history),
            user_message(_build_revision_prompt(question, plan, results, started, bad)),
        ]
        try:
            text = await self._ask_model(messages, offer, _REVISION_SCHEMA)
        except ModelError:
            return considered
        failed = [result.step_id for result in results.values() if not result.success]
        for value in find_json_values(text):
            revised = parse_plan(value, offer.actions, after=started, failed=failed, once=once)
            if revised is not None:
                evidence = text_of_evidence(question, history, results.values())
                revised, _ = _mark_made_up_numbers(revised, evidence, offer)
                return replace(revised, revised_for=tuple(bad), problems=(*plan.problems, *revised.problems))
        return considered

    async def _ask_model(
        self, messages: Sequence[Message], offer: ToolOffer, schema: dict[str, Any] = PLAN_SCHEMA
    ) -> str:
        if len(offer.actions) <= MAX_NAMES_IN_SCHEMA:  # servers that hold a model to it allow no other tools then
            schema = copy_json(schema)
            step: dict[str, Any] = schema["properties"]["steps"]["items"]["properties"]
            step["tool_type"] = {"type": "string", "enum": [*offer.actions, NO_TOOL, ASK_USER]}
        # A model that reasons has read the tools in the prompt; with their schemas too, small ones write calls.
        tools = () if can_reason(self._model) else offer.schemas
        request = ModelRequest(messages=messages, tools=tools, tool_choice="none", answer_schema=schema)
        reply = await self._model.generate(request)
        self.usage += reply.usage
        return reply.text

    def _build_decomposition_prompt(self, question: str, offer: ToolOffer, history: str) -> list[Message]:
        language = detect_language(question)
        tools = "\n".join(self._tool_lines(question, offer))
        rules = PLAN_RULES[language].format(history=f"{history}\n" if history else "", tools=tools)
        return [system_message(f"{PLANNER[language]}\n{rules}"), user_message(question)]

    def _tool_lines(self, question: str, offer: ToolOffer) -> Iterator[str]:
        """Yield the core tools, ten others by relevance, and how many more there are."""
        actions = dict(offer.actions)
        core = [name for name, (tool, _) in actions.items() if tool.id in self._core]
        relevant = [hit.tool.id for hit in self._library.index.search(question, 3 * MAX_OTHER_TOOLS)]
        others = sorted(
            (name for name in actions if name not in core),
            key=lambda name: relevant.index(actions[name][0].id) if actions[name][0].id in relevant else len(relevant),
        )
        for name in (*core, *others[:MAX_OTHER_TOOLS]):
            tool, capability = actions[name]
            description = first_sentence(capability.description or tool.spec.description)
            yield f"- {name}({', '.join(_describe_parameters(capability))}): {description}"
        if len(others) > MAX_OTHER_TOOLS:
            yield MORE_TOOLS[detect_language(question)].format(count=len(others) - MAX_OTHER_TOOLS)


def _describe_parameters(capability: ToolCapability) -> Iterator[str]:
    """Yield the parameters in short: `city`, `unit?: C|F`, `days?: integer`."""
    for parameter in parse_parameters(resolve_schema(capability.schema, capability.schema)):
        values = parameter.schema.get("enum")
        if isinstance(values, list):
            kind = "|".join(map(str, values[:MAX_VALUES_IN_PROMPT]))
        else:
            kind = "" if parameter.type in ("string", "any") else parameter.type
        yield parameter.name + ("" if parameter.required else "?") + (f": {kind}" if kind else "")


def _build_revision_prompt(
    question: str,
    plan: Plan,
    results: Mapping[str, StepResult],
    started: Sequence[PlanStep],
    bad: Sequence[StepId],
) -> str:
    """Return the prompt that lists the bad results, and the results that new steps can use."""
    language = detect_language(question)
    started_ids, bad_ids = {str(step.id) for step in started}, {str(step_id) for step_id in bad}
    replaced = "; ".join(f"[{step.id}] {step.description}" for step in plan.steps if str(step.id) not in started_ids)
    numbers = [step.id for step in started if isinstance(step.id, int)]
    final = [f"[{r.step_id}]" for r in results.values() if r.failed_or_implausible and str(r.step_id) not in bad_ids]
    done = []
    for result in results.values():
        summary = result.summary
        if not result.is_confirmed:  # a step that changes something could contain it
            use = (
                f"steps that change nothing can use it as ${{{result.step_id}}}"
                if result.success
                else "the step failed"
            )
            summary = f"[{result.step_id}] {result.description}: not shown, because no tool confirms it; {use}"
        done.append(summary)
    return REVISION[language].format(
        done="\n".join(done),
        bad=", ".join(f"[{step_id}]" for step_id in bad),
        never=FINAL_STEPS[language].format(steps=", ".join(final)) if final else "",
        replaced=REPLACED_STEPS[language].format(steps=replaced) if replaced else "",
        number=1 + max(numbers, default=0),
    )


def _parse_plan_text(text: str, offer: ToolOffer) -> tuple[Plan | None, str]:
    """Return the plan in a text, repaired if necessary, and what is wrong with it."""
    problem = "no JSON object with steps was found."
    for value in find_json_values(text):
        plan = parse_plan(value, offer.actions)
        problem = " ".join(find_plan_errors(value))
        if plan is not None:
            return plan, problem
    return None, problem


def _mark_made_up_numbers(plan: Plan, evidence: str, offer: ToolOffer) -> tuple[Plan, str]:
    """Mark the numbers that calculations of the plan take from nowhere, though another tool may know them.

    Return also what is wrong with the first of them.
    """
    chosen = {step.tool_type for step in plan.steps}
    tools = [name for name, (tool, _) in offer.actions.items() if name not in chosen and tool.id not in CORE_TOOLS]
    if not tools:
        return plan, ""
    steps = tuple(replace(s, made_up_number=find_made_up_operand(s.parameters, evidence) or "") for s in plan.steps)
    names = ", ".join(tools[:MAX_OTHER_TOOLS])
    problems = (
        MADE_UP_NUMBER.format(step=s.id, number=s.made_up_number, tools=names) for s in steps if s.made_up_number
    )
    return replace(plan, steps=steps), next(problems, "")
