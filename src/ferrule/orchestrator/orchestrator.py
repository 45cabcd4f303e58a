"""The entry point for questions: small talk is answered directly, repeated questions from the cache, others with tools.

question ─► fast path ─► history snapshot ─► request cache ─► plan, loop or direct ─► answer
               │                                  │                                     │
               └──────────────── answer ◄─────────┘              memory and cache ◄─────┘
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias, cast
from uuid import uuid4

from ferrule.agent import Agent, AgentState, Person, RunLimits
from ferrule.agent.answer import AgentAnswer, log_listener_errors
from ferrule.agent.budget import BudgetedModel, RunBudget
from ferrule.agent.calls import Answers, ApprovalDecisions
from ferrule.agent.control_tools import HISTORY_TOOL, history_tool
from ferrule.agent.formats import find_json_values
from ferrule.agent.run import Run, new_run_id
from ferrule.core.content import as_text
from ferrule.core.events import ToolEngineEventType
from ferrule.core.messages import (
    Message,
    Usage,
    assistant_message,
    is_note,
    system_message,
    text_of_message,
    user_message,
)
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.permission import CallPolicy, Principal
from ferrule.errors import ModelError, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import DEFAULT_CONVERSATION, ConversationMemory, HistorySnapshot, Turn
from ferrule.models.choose import choose_model
from ferrule.models.retry import close_model
from ferrule.orchestrator.request_cache import EventListener, RequestCache, SharedRuns, digest_configuration
from ferrule.orchestrator.small_talk import (
    ABOUT_HISTORY,
    NON_QUESTIONS,
    SmallTalk,
    detect_small_talk,
    refers_to_history,
    reply_to_small_talk,
)
from ferrule.policy.policy import Policy
from ferrule.store import ToolCallSummary
from ferrule.texts.fixed_replies import CONVERSATION_HEADING, DIRECT_ANSWER
from ferrule.texts.language import detect_language
from ferrule.texts.shorten import first_sentence, shorten
from ferrule.workflow import GraphWorkflow, SimpleWorkflow, Workflow
from ferrule.workflow.planning import CORE_TOOLS, NoPlan
from ferrule.workflow.verification import verify_calls

logger = logging.getLogger("ferrule.orchestrator")

DEFAULT_CACHE_TTL: Final = 300.0


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


@dataclass(frozen=True, slots=True)
class SharedResult:
    """The result of a run that several callers may wait for."""

    result: AgentAnswer
    for_all: AgentAnswer | None
    """The result for other conversations; None if something in it belongs to one conversation."""


class Orchestrator:
    """Answers questions, many of them concurrently."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model | str | None = None,
        *,
        workflow: WorkflowKind = "simple",
        strategy: str | None = None,
        policy: CallPolicy | None = None,
        person: Person | None = None,
        limits: RunLimits | None = None,
        tools: Collection[str] | None = None,
        instructions: str = "",
        principal: Principal | None = None,
        cache_ttl: float | None = DEFAULT_CACHE_TTL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`strategy` is `plan`, `loop` (the default), `direct`, or `model` to let the model choose.

        `workflow` executes plans: `simple`, `langgraph`, or `auto` for LangGraph if it is installed. `cache_ttl` is how
        long answers are cached, in seconds; None disables the cache. `limits` apply to plans and to the loop; their
        `price` gives the cost of an answer. `tools` restricts the orchestrator to these tools. `principal` makes its
        calls. Cached answers are not shared with orchestrators of another principal, policy or configuration.
        """
        check_strategy(strategy)
        if workflow not in _WORKFLOWS:
            raise SetupError(
                f"There is no workflow {workflow!r}.{did_you_mean(workflow, _WORKFLOWS)} "
                "Use simple, langgraph, or auto for LangGraph if it is installed."
            )
        self.library = library
        self._owns_model = model is None or isinstance(model, str)
        self.model = choose_model(model)
        self.memory, self.policy = ConversationMemory(library.engine.store), policy
        self._strategy, self._workflow, self._limits, self._person = strategy, workflow, limits, person
        self._tools, self._instructions = None if tools is None else {*tools, HISTORY_TOOL}, instructions
        self._principal = library.with_tenant(principal or Principal(kind="agent", name="orchestrator"))
        self._workflows: dict[str, Workflow] = {}
        self._agent = Agent(
            library,
            self.model,
            name="orchestrator",
            instructions=instructions,
            tools=self._tools,
            core_tools=CORE_TOOLS,
            limits=limits,
            policy=policy,
            person=person,
            principal=self._principal,
        )
        self._cache = RequestCache(library.engine.store, cache_ttl, clock=clock)
        rules = policy or library.engine.policy
        allowed = None if self._tools is None else sorted(self._tools)
        self.rules_digest = digest_configuration(self._principal.identity, rules, allowed)
        """Tells orchestrators apart whose runs may do different things."""
        self._cache_scope = digest_configuration(self._principal, rules, allowed, instructions, workflow)
        self._shared_runs: SharedRuns[SharedResult] = SharedRuns()

    async def aclose(self) -> None:
        """Cancel the questions in progress and close the model if it was created here. The library stays open."""
        await self._shared_runs.aclose()
        if self._owns_model:
            await close_model(self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Entry points

    async def process_task(
        self,
        task: str,
        context: Mapping[str, Any] | None = None,
        *,
        strategy: str | None = None,
        conversation_id: str | None = None,
        history: Sequence[Message] = (),
        on_event: EventListener | None = None,
    ) -> AgentAnswer:
        """Answer a question. Errors are reported in the result.

        `context` holds facts for the answer, by name. Questions without a `conversation_id` share one
        conversation. `history` are earlier messages in OpenAI's format; they take the place of the conversation in the
        store. `on_event` receives `StrategyChosen`, then the events of the workflow or the agent.
        """
        check_strategy(strategy)
        if not task.strip():
            raise SetupError("The question is empty. Ask something.")
        started = time.perf_counter()
        small_talk = detect_small_talk(task, has_language_model=can_reason(self.model))
        conversation_id = conversation_id or DEFAULT_CONVERSATION
        await self.memory.synchronize(conversation_id)
        snapshot = self.memory.create_snapshot(conversation_id)
        is_question = small_talk not in NON_QUESTIONS | ABOUT_HISTORY
        turn = self.memory.add_question(
            snapshot.conversation_id, task, is_question=is_question, principal=self._principal.label
        )
        request = TaskRequest(
            task=task,
            context=context or {},
            strategy=strategy or self._strategy,
            snapshot=snapshot,
            turn=turn,
            messages=tuple(history),
        )
        types = ToolEngineEventType.QUESTION_STARTED, ToolEngineEventType.QUESTION_ENDED
        with self.library.engine.events.emit_start_and_end(
            *types, self._principal, question=task, conversation_id=conversation_id
        ) as data:
            try:
                result = await self._maybe_fast_path(request, small_talk)
                if result is None:
                    result = await self._answer_question(request, log_listener_errors(on_event))
            except BaseException as error:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                text, state = ("", "cancelled") if is_cancelled else (str(error), "failed")
                self.memory.add_answer(conversation_id, turn, text, state=state)
                raise
            result = replace(result, question=task, conversation_id=conversation_id)
            self.memory.add_answer(conversation_id, turn, result.answer, state=result.state.value, run_id=result.run_id)
            result = data["result"] = self._finalize(result, time.perf_counter() - started)
        return result

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        approvals: ApprovalDecisions = None,
        on_event: EventListener | None = None,
    ) -> AgentAnswer:
        """Continue a run that is waiting or was interrupted by a crash.

        `answer` is the answer to its question; `approvals` decides about its waiting calls.

        The workflow or agent that started the run continues it. If a plan has several questions, a single text answers
        the first one; a mapping from their ids to texts answers all.
        """
        started = time.perf_counter()
        self._ensure_history_tool()
        types = ToolEngineEventType.QUESTION_STARTED, ToolEngineEventType.QUESTION_ENDED
        with self.library.engine.events.emit_start_and_end(*types, self._principal, run_id=run_id) as data:
            result = await self._resume_run(run_id, answer, approvals, log_listener_errors(on_event))
            bound = await self.memory.get_run_binding(run_id)
            if bound is not None:
                result = replace(result, conversation_id=bound["conversation_id"])
                self.memory.add_answer(
                    bound["conversation_id"], bound["turn"], result.answer, state=result.state.value, run_id=run_id
                )
            result = data["result"] = self._finalize(result, time.perf_counter() - started)
        return result

    @property
    def workflow(self) -> Workflow:
        """Return the workflow that executes plans."""
        return self._get_workflow(self._workflow)

    # Processing steps

    async def _maybe_fast_path(self, request: TaskRequest, small_talk: SmallTalk | None) -> AgentAnswer | None:
        """Return the answer to small talk, without a model, or None for everything else.

        With instructions of the caller, such as a form for the answer, a fixed reply would be wrong.
        """
        if small_talk is None or "instructions" in request.context:
            return None
        started, engine, principal = time.perf_counter(), self.library.engine, self._principal
        principal = principal if self._tools is None else principal.restricted_to(self._tools)
        tools = engine.permissions(principal, self.policy).select_tools(engine.registry.snapshot()).values()
        turns = await request.snapshot.turns() if small_talk in ABOUT_HISTORY else ()
        return AgentAnswer(
            question=request.task,
            text=reply_to_small_talk(small_talk, tools, turns, detect_language(request.task)),
            state=AgentState.FINISHED,
            strategy="fast_path",
            summary=ToolCallSummary(conversation_id="").to_brief(),
            timings={"fast_path": time.perf_counter() - started},
        )

    async def _answer_question(self, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer from the cache, by joining a run that is answering the same question, or by a new run."""
        self._ensure_history_tool()
        is_policy_constant = type(self.policy or self.library.engine.policy) is Policy  # others may decide anew
        if request.messages or not is_policy_constant:  # messages: the answer belongs to this conversation
            return await self._run(request, listener)
        registry = self.library.engine.registry
        scope = (request.strategy, dict(request.context), self._cache_scope)
        key = self._cache.key(request.task, registry, self.model.name, *scope)
        if key is None:
            return await self._run(request, listener)
        started = time.perf_counter()
        cached = await self._cache.get(key)
        lookup = time.perf_counter() - started
        if cached is not None:
            timings = {"cache": lookup}
            return replace(cached, cached=True, usage=Usage(), model_cost=0.0, tool_cost=0.0, timings=timings)
        result = await self._run_shared(key, request, listener)
        return replace(result, timings={"cache": lookup, **result.timings})

    async def _run_shared(self, key: str, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer by one run for all callers who ask the same question now.

        Between conversations, only results that belong to no conversation are shared.
        """
        conversation_id = request.snapshot.conversation_id
        run = self._shared_runs.find(key, conversation_id)
        if run is None and (other := self._shared_runs.find_any(key)) is not None:
            shared = await other.join()  # without the listener: its events belong to the other conversation
            if shared.for_all is not None:
                return replace(shared.for_all, shared=True)
            run = self._shared_runs.find(key, conversation_id)
        if run is not None:
            return replace((await run.join(listener)).result, shared=True)
        run = self._shared_runs.start(
            key, conversation_id, lambda emit: self._run_and_cache(key, request, emit if listener else None)
        )
        return (await run.join(listener)).result

    async def _run_and_cache(self, key: str, request: TaskRequest, listener: EventListener | None) -> SharedResult:
        """Answer the question, and cache the answer if it may be cached."""
        result = await self._run(request, listener)
        seconds = await self._cache.find_ttl(result, self.library.engine.registry.snapshot())
        for_all = None
        if seconds is not None and not self.memory.was_read_by(result.run_id):
            for_all = self._cache.without_secrets(result)
            if for_all is not None:
                await self._cache.add(key, for_all, seconds)
        return SharedResult(result, for_all)

    async def _run(self, request: TaskRequest, listener: EventListener | None) -> AgentAnswer:
        """Answer a question by a new run."""
        started = time.perf_counter()
        budget, run_id = RunBudget(self._limits), new_run_id()
        budget.attach(self.library.engine, self._principal, run_id)
        choice = await choose_strategy(request.task, request.strategy, self.library, self.model, budget)
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
            "model": self.model.name,
            "rules": self.rules_digest,
        }
        self.memory.bind_run(request.run_id, request.snapshot, request.turn, **facts)

    async def _resume_run(
        self, run_id: str, answer: Answers, approvals: ApprovalDecisions, listener: EventListener | None
    ) -> AgentAnswer:
        """Continue a run with the agent or workflow that started it."""
        run = await Run.load(run_id, self.library.engine.store)
        if run.workflow is None:
            bound = await self.memory.get_run_binding(run_id) or {}
            done = await self._agent.resume(run_id, answer, approvals=approvals, on_event=listener)
            summary = (await self.library.engine.get_call_summary(run_id)).to_brief()
            return await verify_calls(replace(done, strategy=bound.get("strategy", "loop"), summary=summary))
        return await self._get_workflow(run.workflow).resume(run_id, answer, approvals=approvals, on_event=listener)

    # The strategies

    async def _run_plan(self, request: TaskRequest) -> AgentAnswer:
        turns = [*turns_of(request.messages), *request.turns]
        history = history_as_text(turns, detect_language(request.task))
        workflow, facts = self.workflow, _format_context(request.context)
        context = {
            "history": "\n\n".join(filter(None, [facts, history])),
            "questions": [turn.question for turn in turns[-MAX_HISTORY_TURNS:]],
        }
        try:
            return await workflow.run(
                request.task,
                context,
                run_id=request.run_id,
                on_event=request.listener,
                budget=request.budget,
                requires_plan=can_reason(self.model),
            )
        except NoPlan as problem:  # the loop answers, as another run
            request = replace(request, run_id=new_run_id())
            self._begin_run(request, StrategyChosen(strategy="loop", reason=str(problem)))
            answered = await self._run_loop(request)
            return replace(answered, usage=answered.usage + problem.usage)

    async def _run_loop(self, request: TaskRequest) -> AgentAnswer:
        agent = self._agent.with_instructions(_format_context(request.context)) if request.context else self._agent
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

    def _get_workflow(self, kind: str) -> Workflow:
        if kind == "auto":
            kind = "langgraph" if importlib.util.find_spec("langgraph") is not None else "simple"
        if kind not in self._workflows:
            workflow = GraphWorkflow if kind == "langgraph" else SimpleWorkflow
            self._workflows[kind] = workflow(
                self.library,
                self.model,
                policy=self.policy,
                tools=self._tools,
                limits=self._limits,
                principal=self._principal,
                person=self._person,
            )
        return self._workflows[kind]

    def _finalize(self, result: AgentAnswer, seconds: float) -> AgentAnswer:
        price = self._limits.price if self._limits is not None else None
        model_cost = result.model_cost
        if price is not None and not model_cost:  # the project has no price for the model, but the caller has
            model_cost = price(result.usage)
        costs = [cost for cost in (model_cost, result.tool_cost) if cost is not None]
        result = replace(
            result,
            trace_id=uuid4().hex,
            model_cost=model_cost,
            cost=sum(costs) if costs else None,
            timings={**result.timings, "total": seconds},
        )
        logger.info(
            "trace=<%s>, run=<%s>, strategy=<%s>, state=<%s>, cached=<%s>, seconds=<%.4f> | answered",
            result.trace_id,
            result.run_id,
            result.strategy,
            result.state.value,
            result.cached,
            seconds,
        )
        return result

    def _ensure_history_tool(self) -> None:
        """Register the history tool at the first question, because the library may load a tool with this name."""
        if HISTORY_TOOL not in self.library.engine.registry:
            self.library.engine.register(history_tool(self.memory))


def history_as_text(turns: Sequence[Turn], language: str) -> str:
    """Return the last turns as text for a prompt, empty if there are none."""
    lines = []
    for turn in turns[-MAX_HISTORY_TURNS:]:
        lines.append(f"user: {shorten(turn.question, _MAX_TURN_LENGTH)}")
        if turn.answer:
            lines.append(f"assistant: {shorten(turn.answer, _MAX_TURN_LENGTH)}")
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
        if message["role"] == "user" and not is_note(message):
            turns.append(Turn(question=text))
        elif message["role"] == "assistant" and turns and text:
            turns[-1] = replace(turns[-1], answer=text)
    return turns


def _format_context(context: Mapping[str, Any]) -> str:
    """Return the context of a question, as lines for a prompt."""
    return "\n".join(f"{name}: {as_text(value)}" for name, value in context.items())
