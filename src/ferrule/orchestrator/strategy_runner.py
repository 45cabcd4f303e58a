"""Answering a question with a plan, in the agent's loop, or by the model alone; and resuming its run."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

from ferrule.agent import Agent, Person, RunLimits
from ferrule.agent.answer import AgentAnswer
from ferrule.agent.budget import BudgetedModel, RunBudget
from ferrule.agent.calls import Answers, ApprovalDecisions
from ferrule.agent.formats import find_json_values
from ferrule.agent.run import Run, new_run_id
from ferrule.core.content import as_text
from ferrule.core.messages import Message, Usage, assistant_message, system_message, text_of_message, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.permission import CallPolicy, Principal
from ferrule.errors import ModelError, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import ConversationMemory, HistorySnapshot, Turn
from ferrule.orchestrator.request_cache import EventListener, digest_configuration
from ferrule.orchestrator.small_talk import refers_to_history
from ferrule.texts.fixed_replies import CONVERSATION_HEADING, DIRECT_ANSWER
from ferrule.texts.language import detect_language
from ferrule.texts.shorten import first_sentence, shorten
from ferrule.workflow import GraphWorkflow, SimpleWorkflow, Workflow
from ferrule.workflow.planning import CORE_TOOLS, NoPlan
from ferrule.workflow.verification import verify_calls

# A question is answered with a plan, in the agent's loop, or by the model alone. The caller or the configuration may
# choose; `model` lets the model choose. The default is the loop, where the model decides what it needs.

Strategy: TypeAlias = Literal["plan", "loop", "direct"]
STRATEGIES: Final = ("plan", "loop", "direct")
BY_MODEL: Final = "model"

_MAX_TOOLS: Final = 10
_STRATEGY_PROMPT: Final = """\
How should the question be answered?
- plan: it needs several steps or several tools
- loop: one tool, or a few that each depend on the result of the one before
- direct: no tool helps; you can answer it yourself
Tools: {tools}
Answer with JSON: {{"strategy": "plan" | "loop" | "direct"}}"""
_STRATEGY_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"strategy": {"type": "string", "enum": list(STRATEGIES)}},
    "required": ["strategy"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChosen:
    """The strategy that was chosen for a question, and why."""

    strategy: Strategy
    reason: str
    usage: Usage = Usage()
    run_id: str = ""
    """The id of the new run, with which it can be resumed."""


def check_strategy(name: str | None) -> None:
    """Raise SetupError for a strategy that does not exist."""
    names = (*STRATEGIES, BY_MODEL)
    if name is not None and name not in names:
        raise SetupError(
            f"There is no strategy {name!r}.{did_you_mean(name, names)} Use plan, loop, direct, or model to let the "
            "model choose; the default is the loop."
        )


async def choose_strategy(
    question: str, strategy: str | None, library: UnifiedToolLibrary, model: Model, budget: RunBudget
) -> StrategyChosen:
    """Return the given strategy, the model's choice if it is `model`, or the loop."""
    if strategy == BY_MODEL and can_reason(model):
        return await _ask_model_for_strategy(question, library, BudgetedModel(model, budget))
    if strategy is not None and strategy != BY_MODEL:
        return StrategyChosen(strategy=cast(Strategy, strategy), reason="it was asked for")
    return StrategyChosen(strategy="loop", reason="the loop is the default")


async def _ask_model_for_strategy(question: str, library: UnifiedToolLibrary, model: Model) -> StrategyChosen:
    await library.index.prepare(question)
    hits = library.index.search(question, _MAX_TOOLS)
    tools = "; ".join(f"{hit.tool.id} ({first_sentence(hit.tool.spec.description)})" for hit in hits)
    messages = [system_message(_STRATEGY_PROMPT.format(tools=tools or "none that matches")), user_message(question)]
    try:
        reply = await model.generate(ModelRequest(messages=messages, answer_schema=_STRATEGY_SCHEMA))
    except ModelError:
        return StrategyChosen(strategy="loop", reason="the model did not choose")
    for value in find_json_values(reply.text):
        if isinstance(value, dict) and value.get("strategy") in STRATEGIES:
            return StrategyChosen(strategy=value["strategy"], reason="the model chose it", usage=reply.usage)
    return StrategyChosen(strategy="loop", reason="the model did not choose", usage=reply.usage)


WorkflowKind: TypeAlias = Literal["auto", "simple", "langgraph"]
_WORKFLOWS: Final = ("auto", "simple", "langgraph")
MAX_HISTORY_TURNS: Final = 10
"""How many earlier turns are given to a model."""
_MAX_TURN_LENGTH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A question with its context, strategy and conversation."""

    task: str
    context: Mapping[str, Any]
    strategy: str | None
    snapshot: HistorySnapshot
    turn: str
    """The id of the question in the conversation."""
    messages: tuple[Message, ...] = ()
    """The conversation before the question, where the caller has it and not the store."""
    run_id: str = ""
    """The id of the run that answers the question; the next fields belong to this run."""
    turns: Sequence[Turn] = ()
    """The conversation before the question, if the question refers to it."""
    budget: RunBudget | None = None
    listener: EventListener | None = None

    @property
    def history(self) -> list[Message]:
        return [*self.messages, *history_as_messages(self.turns)]


class StrategyRunner:
    """Answers questions with the strategy chosen for each."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        memory: ConversationMemory,
        *,
        workflow: WorkflowKind,
        policy: CallPolicy | None,
        person: Person | None,
        limits: RunLimits | None,
        tools: Collection[str] | None,
        instructions: str,
        principal: Principal,
    ) -> None:
        if workflow not in _WORKFLOWS:
            raise SetupError(
                f"There is no workflow {workflow!r}.{did_you_mean(workflow, _WORKFLOWS)} "
                "Use simple, langgraph, or auto for LangGraph if it is installed."
            )
        self._library, self._model, self._memory = library, model, memory
        self._workflow, self._policy, self._person, self._limits = workflow, policy, person, limits
        self._tools, self._instructions, self._principal = tools, instructions, principal
        self.rules_digest = digest_configuration(
            principal.identity, policy or library.engine.policy, None if tools is None else sorted(tools)
        )
        """Tells runs apart that may do different things."""
        self._workflows: dict[str, Workflow] = {}
        self._agent = self._make_agent("")
        self._store = library.engine.store

    async def run(self, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer a question."""
        started = time.perf_counter()
        budget, run_id = RunBudget(self._limits), new_run_id()
        budget.attach(self._library.engine, self._principal, run_id)
        choice = await choose_strategy(request.task, request.strategy, self._library, self._model, budget)
        choosing = time.perf_counter() - started
        request = replace(request, run_id=run_id, budget=budget, listener=listener)
        self._begin_run(request, choice)
        if not request.messages and refers_to_history(request.task):
            request = replace(request, turns=await request.snapshot.turns())
        strategies = {"plan": self._run_plan, "loop": self._run_loop, "direct": self._run_direct}
        started = time.perf_counter()
        result = await strategies[choice.strategy](request)
        stages = result.timings or {choice.strategy: time.perf_counter() - started}
        return replace(result, usage=result.usage + choice.usage, timings={"strategy": choosing, **stages})

    def _begin_run(self, request: TaskRequest, choice: StrategyChosen) -> None:
        """Tie a new run to the conversation."""
        if request.listener is not None:
            request.listener(replace(choice, run_id=request.run_id))
        facts = {
            "strategy": choice.strategy,
            "principal": self._principal.label,
            "tenant": self._principal.tenant,
            "client_id": self._principal.client_id,
            "model": self._model.name,
            "rules": self.rules_digest,
        }
        self._memory.bind_run(request.run_id, request.snapshot, request.turn, **facts)

    async def resume(
        self,
        run_id: str,
        answer: Answers,
        approvals: ApprovalDecisions,
        listener: EventListener | None,
    ) -> AgentAnswer:
        """Continue a run with the agent or workflow that started it."""
        run = await Run.load(run_id, self._store)
        if run.workflow is None:
            bound = await self._memory.get_run_binding(run_id) or {}
            done = await self._agent.resume(run_id, answer, approvals=approvals, on_event=listener)
            summary = (await self._library.engine.get_call_summary(run_id)).to_brief()
            return await verify_calls(replace(done, strategy=bound.get("strategy", "loop"), summary=summary))
        return await self._get_workflow(run.workflow).resume(run_id, answer, approvals=approvals, on_event=listener)

    # The strategies

    async def _run_plan(self, request: TaskRequest) -> AgentAnswer:
        history = history_as_text([*turns_of(request.messages), *request.turns], detect_language(request.task))
        workflow, facts = self.workflow, _format_context(request.context)
        context = {"history": "\n\n".join(filter(None, [facts, history]))}
        try:
            return await workflow.run(
                request.task,
                context,
                run_id=request.run_id,
                on_event=request.listener,
                budget=request.budget,
                requires_plan=can_reason(self._model),
            )
        except NoPlan as problem:  # the loop answers, as another run
            request = replace(request, run_id=new_run_id())
            self._begin_run(request, StrategyChosen(strategy="loop", reason=str(problem)))
            answered = await self._run_loop(request)
            return replace(answered, usage=answered.usage + problem.usage)

    async def _run_loop(self, request: TaskRequest) -> AgentAnswer:
        agent = self._make_agent(_format_context(request.context)) if request.context else self._agent
        answer = await agent.run(
            request.task,
            history=request.history,
            run_id=request.run_id,
            on_event=request.listener,
            budget=request.budget,
        )
        return await verify_calls(answer)

    async def _run_direct(self, request: TaskRequest) -> AgentAnswer:
        language = detect_language(request.task)
        prompt = "\n\n".join(
            filter(None, [DIRECT_ANSWER[language], self._instructions, _format_context(request.context)])
        )
        answer = await self._agent.answer_directly(
            request.task,
            prompt,
            history=request.history,
            run_id=request.run_id,
            on_event=request.listener,
            budget=request.budget,
        )
        return replace(answer, strategy="direct")

    # Details

    def _make_agent(self, instructions: str) -> Agent:
        return Agent(
            self._library,
            self._model,
            name="orchestrator",
            instructions="\n\n".join(filter(None, [self._instructions, instructions])),
            tools=self._tools,
            core_tools=CORE_TOOLS,
            limits=self._limits,
            policy=self._policy,
            person=self._person,
            principal=self._principal,
        )

    @property
    def workflow(self) -> Workflow:
        """Return the workflow that executes plans."""
        return self._get_workflow(self._workflow)

    def _get_workflow(self, kind: str) -> Workflow:
        if kind == "auto":
            kind = "langgraph" if importlib.util.find_spec("langgraph") is not None else "simple"
        if kind not in self._workflows:
            workflow = GraphWorkflow if kind == "langgraph" else SimpleWorkflow
            self._workflows[kind] = workflow(
                self._library,
                self._model,
                policy=self._policy,
                tools=self._tools,
                limits=self._limits,
                principal=self._principal,
                person=self._person,
            )
        return self._workflows[kind]


def history_as_text(turns: Sequence[Turn], language: str) -> str:
    """Return the last turns as text for a prompt, empty if there are none."""
    lines = [line for turn in turns[-MAX_HISTORY_TURNS:] for line in _format_turn(turn)]
    return "\n".join([CONVERSATION_HEADING[language], *lines]) if lines else ""


def history_as_messages(turns: Sequence[Turn]) -> list[Message]:
    """Return the last turns that have answers, as a conversation with a model: an error is none."""
    messages: list[Message] = []
    answered = [turn for turn in turns if turn.answer and turn.state not in ("failed", "cancelled")]
    for turn in answered[-MAX_HISTORY_TURNS:]:
        messages += [user_message(turn.question), assistant_message(shorten(turn.answer, _MAX_TURN_LENGTH))]
    return messages


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Return the questions in messages, each with the text that follows it."""
    turns: list[Turn] = []
    for message in messages:
        text = text_of_message(message)
        if message["role"] == "user":
            turns.append(Turn(question=text))
        elif message["role"] == "assistant" and turns and text:
            turns[-1] = replace(turns[-1], answer=text)
    return turns


def _format_turn(turn: Turn) -> list[str]:
    lines = [f"user: {shorten(turn.question, _MAX_TURN_LENGTH)}"]
    return [*lines, f"assistant: {shorten(turn.answer, _MAX_TURN_LENGTH)}"] if turn.answer else lines


def _format_context(context: Mapping[str, Any]) -> str:
    """Return the context of a question, as lines for a prompt."""
    return "\n".join(f"{name}: {as_text(value)}" for name, value in context.items())
