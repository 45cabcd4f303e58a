"""Answering a question that needs work: by a plan, in the agent's loop, or by the model alone; and going on with it."""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from ferrule.agent import Agent, Approval, ApprovalPolicy, Person, RunLimits
from ferrule.agent.alone import alone
from ferrule.agent.answer import AgentState
from ferrule.agent.prompts import language_of
from ferrule.content import as_text
from ferrule.errors import SetupError
from ferrule.library import UnifiedToolLibrary
from ferrule.memory.conversation import ConversationMemory, HistorySnapshot, Turn
from ferrule.models.model import Model
from ferrule.names import did_you_mean
from ferrule.orchestrator.about import is_about_history
from ferrule.orchestrator.direct import answer_directly
from ferrule.orchestrator.flights import Tell
from ferrule.orchestrator.history import history_as_messages, history_in_words
from ferrule.orchestrator.outcomes import outcome_of_plan, outcome_of_run
from ferrule.orchestrator.result import OrchestratorResult
from ferrule.orchestrator.strategy import choose_strategy
from ferrule.workflow import GraphWorkflow, SimpleWorkflow, Workflow, WorkflowResult
from ferrule.workflow.notes import RunNotes
from ferrule.workflow.planning import CORE_TOOLS
from ferrule.workflow.workflow import new_run_id

WorkflowKind: TypeAlias = Literal["auto", "simple", "langgraph"]
_WORKFLOWS: Final = ("auto", "simple", "langgraph")
_ASKED: Final = 3
"""So often somebody is asked about one step."""
_CHECKPOINTS: Final = {"sqlite": "langgraph.checkpoint.sqlite", "postgresql": "langgraph.checkpoint.postgres"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question on its way."""

    task: str
    context: Mapping[str, Any]
    strategy: str | None
    snapshot: HistorySnapshot
    turn: str
    """Where the conversation has it."""


class Runs:
    """Does what questions need to have done."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model,
        memory: ConversationMemory,
        *,
        workflow: WorkflowKind,
        policy: ApprovalPolicy | None,
        person: Person | None,
        limits: RunLimits | None,
        tools: Collection[str] | None,
        instructions: str,
    ) -> None:
        if workflow not in _WORKFLOWS:
            raise SetupError(
                f"There is no workflow {workflow!r}.{did_you_mean(workflow, _WORKFLOWS)} "
                "Write simple, langgraph, or auto for LangGraph where it is installed."
            )
        self._library, self._model, self._memory = library, model, memory
        self._workflow, self._policy, self._person, self._limits = workflow, policy, person, limits
        self._tools, self._instructions = tools, instructions
        self._flows: dict[str, Workflow] = {}
        self._agent = self._make_agent("")
        self._store = library.engine.store

    async def aclose(self) -> None:
        for flow in self._flows.values():
            if isinstance(flow, GraphWorkflow):
                await flow.aclose()
        self._flows.clear()

    async def run(self, asked: Asked, tell: Tell | None) -> OrchestratorResult:
        """Answer a question."""
        began = time.perf_counter()
        chosen = await choose_strategy(asked.task, asked.strategy, self._library, self._model)
        choosing = time.perf_counter() - began
        run_id = new_run_id()
        if tell is not None:
            tell(replace(chosen, run_id=run_id))
        self._memory.bind(run_id, asked.snapshot, asked.turn, strategy=chosen.strategy)
        turns = await asked.snapshot.turns() if is_about_history(asked.task) else ()
        ways = {"plan": self._plan, "loop": self._loop, "direct": self._direct}
        began = time.perf_counter()
        result = await ways[chosen.strategy](asked, run_id, turns, tell)
        stages = result.timings or {chosen.strategy: time.perf_counter() - began}
        return replace(result, usage=result.usage + chosen.usage, timings={"strategy": choosing, **stages})

    async def resume(
        self,
        run_id: str,
        answer: Mapping[str, str] | str | None,
        approvals: Mapping[str, Approval | bool] | bool | None,
        tell: Tell | None,
    ) -> OrchestratorResult:
        """Go on with a run where it was, with what began it."""
        entries = await RunNotes(self._library, run_id).read()
        begin = entries[0]
        if begin.get("workflow") is None:
            bound = await self._memory.bound_to(run_id) or {}
            said = answer if isinstance(answer, str) or answer is None else "\n".join(answer.values())
            went_on = await self._agent.resume(run_id, said, approvals=approvals, on_event=tell)
            return await outcome_of_run(
                begin["task"], went_on, bound.get("strategy", "loop"), await self._summary(run_id)
            )
        flow = self._flow(begin["workflow"])
        if answer is not None and not _has_asked(entries[-1]):
            raise SetupError(
                f"The run {run_id!r} has asked nothing that could be answered. Go on with it without an answer."
            )
        with alone(self._store, run_id):
            done = await flow.resume(run_id, answer, approvals=approvals, on_event=tell)
            done = await self._ask_person(flow, done, tell)
        return outcome_of_plan(done, await self._summary(run_id))

    # The ways

    async def _plan(self, asked: Asked, run_id: str, turns: tuple[Turn, ...], tell: Tell | None) -> OrchestratorResult:
        language = language_of(asked.task)
        history = "\n\n".join(filter(None, [_in_words(asked.context), history_in_words(turns, language)]))
        flow = self._flow(self._workflow)
        with alone(self._store, run_id):
            done = await flow.run(asked.task, {"history": history}, run_id=run_id, on_event=tell)
            done = await self._ask_person(flow, done, tell)
        return outcome_of_plan(done, await self._summary(run_id))

    async def _loop(self, asked: Asked, run_id: str, turns: tuple[Turn, ...], tell: Tell | None) -> OrchestratorResult:
        agent = self._make_agent(_in_words(asked.context)) if asked.context else self._agent
        answer = await agent.run(asked.task, history=history_as_messages(turns), run_id=run_id, on_event=tell)
        return await outcome_of_run(asked.task, answer, "loop", answer.summary)

    async def _direct(
        self, asked: Asked, run_id: str, turns: tuple[Turn, ...], tell: Tell | None
    ) -> OrchestratorResult:
        with alone(self._store, run_id):
            answer = await answer_directly(
                asked.task,
                self._model,
                self._store,
                run_id=run_id,
                instructions="\n\n".join(filter(None, [self._instructions, _in_words(asked.context)])),
                history=history_as_messages(turns),
                tell=tell,
            )
        return await outcome_of_run(asked.task, answer, "direct", answer.summary)

    # Small parts

    async def _ask_person(self, flow: Workflow, done: WorkflowResult, tell: Tell | None) -> WorkflowResult:
        """What a plan waits for is asked at once, if somebody is there; whoever says nothing is asked only once.

        One step may ask again, if it is done with another tool or with other arguments; but not for ever.
        """
        asked: Counter[str] = Counter()
        while done.state is AgentState.WAITING and self._person is not None:
            words: dict[str, Approval] = {}
            answers: dict[str, str] = {}
            for request in (one for one in done.approvals if asked[one.call_id] < _ASKED):
                word = await self._person.approve(request)
                asked[request.call_id] += 1 if word is not None else _ASKED
                words |= {} if word is None else {request.call_id: word}
            for question in (one for one in done.questions if asked[one.call_id] < _ASKED):
                text = await self._person.answer(question)
                asked[question.call_id] += 1 if text is not None else _ASKED
                answers |= {} if text is None else {question.call_id: text}
            if not words and not answers:
                break
            before = done
            done = await flow.resume(done.run_id, answers, approvals=words, on_event=tell)
            times = {name: before.timings.get(name, 0.0) + seconds for name, seconds in done.timings.items()}
            done = replace(done, usage=before.usage + done.usage, timings=times)
        return done

    async def _summary(self, run_id: str) -> dict[str, Any]:
        return (await self._library.engine.get_call_summary(run_id)).to_brief()

    def _make_agent(self, instructions: str) -> Agent:
        return Agent(
            self._library,
            self._model,
            name="orchestrator",
            instructions="\n\n".join(filter(None, [self._instructions, instructions])),
            tools=self._tools,
            core_tools=CORE_TOOLS,
            limits=self._limits,
            approval=self._policy,
            person=self._person,
        )

    def _flow(self, kind: str) -> Workflow:
        if kind == "auto":
            kind = "langgraph" if _has_langgraph(self._library.engine.store.location.kind) else "simple"
        if kind not in self._flows:
            made = GraphWorkflow if kind == "langgraph" else SimpleWorkflow
            self._flows[kind] = made(
                self._library, self._model, policy=self._policy, tools=self._tools, limits=self._limits
            )
        return self._flows[kind]


def _has_asked(last: Mapping[str, Any]) -> bool:
    return last["kind"] == "end" and bool(last.get("questions"))


def _in_words(context: Mapping[str, Any]) -> str:
    """What was given with a question, for a prompt."""
    return "\n".join(f"{name}: {as_text(value)}" for name, value in context.items())


def _has_langgraph(store: str) -> bool:
    """Whether it is there, with checkpoints for this kind of store."""
    wanted = ["langgraph", *filter(None, [_CHECKPOINTS.get(store)])]
    return all(importlib.util.find_spec(name) is not None for name in wanted)
