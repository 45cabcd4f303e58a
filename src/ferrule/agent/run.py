"""One run: its messages, calls, plan, open questions and lock. The loop, plans and direct answers all use this run.

Everything that happens is one entry appended to the run's stream (see `ferrule.store.entry_streams`), so the hundredth
turn costs as much as the first. Earlier entries are written again only to remove a secret that became known later. If a
process is killed between any two entries, another process can continue the run.

    begin    the task, with all messages before the model's first reply; of a plan, also the workflow
    message  a message of the system, the user or the model
    plan     the plan, and each revision of the plan
    step     the result of one call as soon as it is available, or of one step of the plan after it was verified
    wait     the questions and approvals that the run waits for
    end      how the run ended, also by an error; if the run is resumed later, further entries follow

Each entry also has the seconds of the run so far and, where they have changed, the usage of the model and the costs so
far. A reply of the model has the usage of this reply instead (`used`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from ferrule.agent.answer import NO_OUTPUT, NO_TOOL, AgentAnswer, AgentState, Plan, StepResult, StoredRun
from ferrule.agent.budget import RunBudget
from ferrule.catalog.model_schemas import estimate_schema_tokens
from ferrule.core.content import as_text
from ferrule.core.messages import (
    Message,
    Schema,
    ToolCall,
    Usage,
    arguments_to_send,
    assistant_message,
    decode_tool_call,
    text_of_message,
    tool_message,
)
from ferrule.errors import FerruleError, LockHeld, LockLost, RunInProgress, RunInterrupted, SetupError, error_text
from ferrule.memory import ExecutionContext
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.policy.budgets import RunCosts, is_extension_request
from ferrule.store import ToolKnowledgeStore
from ferrule.store.store import StoreLock
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language

RUN_PREFIX: Final = "run:"
_NEVER_SECRET: Final = ("kind", "state", "used", "usage", "seconds", "cost", "costs")
"""Fields that are needed to continue the run; a number in them may equal a secret by chance."""
_MAX_EARLIER_QUESTION: Final = 500
_SECRET_LOST: Final = (
    "This call was not executed: it contained a secret, and secrets are not stored while a run waits or is "
    "interrupted. Make it again with the value itself, or ask for it."
)


class Run:
    """The state of one run."""

    def __init__(self, task: str, store: ToolKnowledgeStore, run_id: str | None = None) -> None:
        self.id = run_id or new_run_id()
        self.task = task
        self.state = AgentState.RUNNING
        self.messages: list[Message] = []
        self.steps: list[StepResult] = []
        """The results of the calls, or of the steps of the plan."""
        self.usage = Usage()
        self.costs = RunCosts()
        self.turns = 0
        self.context = ExecutionContext(task_description=task)
        self.open_calls: list[ToolCall] = []
        """The calls of the last turn, until all of them have results."""
        self.answers: dict[str, StepResult] = {}
        """Results of the open calls, by call id."""
        self.questions: dict[str, Question] = {}
        self.approvals: dict[str, ApprovalRequest] = {}
        self.text = ""
        self.reason = ""
        self.has_model_failed = False
        self.finish_message: str | None = None
        """The message of `finish_task`; None until it is called."""
        self.value: Any = NO_OUTPUT
        """The output of a run that has a type for it."""
        self.workflow: str | None = None
        """The kind of workflow that executes the plan of the run; None for a run without a plan."""
        self.history = ""
        """The conversation before the task of a plan, as text."""
        self.plan: Plan | None = None
        """The latest plan, without secrets."""
        # Kept up to date with the messages and steps, which only grow: a turn must not read all of them again.
        self._topic: str | None = None
        self._read_messages = 0
        self._names_in_messages: dict[str, None] = {}
        self._names_in_steps: dict[str, None] = {}
        self.failed_calls: set[str] = set()
        self.call_ids: set[str] = set()
        self.refused_names: set[str] = set()
        """The tools, by their names for models, of which the last calls included one that is known to fail, or that has
        a made-up value. They are not offered until the model calls something else."""
        self.call_sources: dict[str, str] = {}
        """Calls as the model wrote them in its text, by the id of the first call of a reply."""
        self._offer: tuple[Sequence[Schema], str] | None = None
        self._offer_fields: dict[str, Any] = {}
        """What is stored with the next reply, because it differs from before."""
        self.begin_length = 0
        """How many messages there were before the model's first reply."""
        self.entry_count = 0
        self._store, self._entries = store, dict[str, Mapping[str, Any]]()
        self.secrets = store.get_run_secrets(self.id)
        """The secrets that calls pass to tools. They are removed from every entry."""
        self._known_secrets = len(self.secrets)
        self._stored_usage, self._stored_costs = Usage(), RunCosts().to_dict()
        self._stored_requests: frozenset[str] = frozenset()
        """What the last entry says that the run waits for."""
        self._seconds_before = 0.0
        self.budget: RunBudget | None = None
        """What counts the time of the run; None for a run that is only read."""

    @property
    def seconds(self) -> float:
        """Return how long the run took so far, as its limits count: without the time for which people were asked."""
        return self._seconds_before if self.budget is None else self.budget.seconds

    @property
    def open_requests(self) -> frozenset[str]:
        """Ids of the pending questions and approvals."""
        return frozenset({*self.questions, *(request.approval_id for request in self.approvals.values())})

    @property
    def has_only_failures(self) -> bool:
        """Return whether calls were made and none succeeded."""
        return bool(self.steps) and not any(step.is_success for step in self.steps)

    @property
    def used_tools(self) -> list[str]:
        """Return the names for models of what the run and the conversation before it called, the latest first."""
        for message in self.messages[self._read_messages :]:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                # The name inside `call_tool`, which is a parameter there.
                name = str(arguments_to_send(function["arguments"]).get("name", function["name"]))
                self._names_in_messages.pop(name, None)
                self._names_in_messages[name] = None
        self._read_messages = len(self.messages)
        return list(dict.fromkeys([*reversed(self._names_in_steps), *reversed(self._names_in_messages)]))

    @property
    def topic(self) -> str:
        """Return the text that tools are searched by: the task, after the question to which it may be a follow-up."""
        if self._topic is None:
            texts = [t for m in self.messages if m["role"] == "user" and (t := text_of_message(m))]
            if self.task not in texts:
                return self.task
            earlier = texts[: texts.index(self.task)][-1:]
            self._topic = "\n".join([*(text[:_MAX_EARLIER_QUESTION] for text in earlier), self.task])
        return self._topic

    @property
    def is_waiting(self) -> bool:
        return bool(self.questions or self.approvals)

    async def exists(self) -> bool:
        """Return whether the store already has a run with this id."""
        return bool(await self._store.read_entries(RUN_PREFIX + self.id))

    async def require_new(self) -> None:
        """Raise SetupError if the store already has a run with this id."""
        if await self.exists():
            raise SetupError(
                f"The run {self.id!r} exists already. Continue it with resume({self.id!r}), or choose another id."
            )

    # Changes of state, each written as an entry

    def begin(self, messages: Iterable[Message], *, workflow: str | None = None, history: str = "") -> None:
        """Begin the run. `workflow` and `history` belong to a plan."""
        self._apply_begin(messages, workflow, history)
        fields = {} if workflow is None else {"strategy": "plan", "workflow": workflow, "history": history}
        self._write("begin", task=self.task, messages=list(self.messages), **fields)

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._write("message", message=message)

    def add_plan(self, plan: Plan) -> None:
        """Store a plan, or a revision of the plan, from which secrets were removed."""
        self.plan = plan
        self._write("plan", plan=plan.to_dict())

    def add_step(self, step: StepResult) -> None:
        """Add the result of a call or of a step of the plan.

        Once all open calls of a turn have results, these enter the history in call order.
        """
        self._write("step", step=step.to_entry())
        self._apply_step(step)

    def set_offer(self, schemas: Sequence[Schema], model: str) -> None:
        """Note which model is asked next, and how many tokens the schemas of each tool take that it is shown."""
        if self._offer is not None and self._offer[0] is schemas and self._offer[1] == model:
            return
        self._offer = schemas, model
        tokens = {str(schema["function"]["name"]): estimate_schema_tokens(schema) for schema in schemas}
        self._offer_fields = {"model": model, "tools": tokens}

    def add_reply(
        self,
        message: Message,
        calls: list[ToolCall],
        usage: Usage,
        *,
        redacted: Message,
        source: str = "",
        cost: float | None = None,
    ) -> None:
        """Add the model's reply and open its calls. `redacted` is the message as it is stored.

        `source` are the calls as they were written in the text. It is not stored if secrets are in it: a resumed run
        shows such calls as those of an API.
        """
        self.turns += 1
        self.usage += usage
        self.messages.append(message)
        self.open_calls, self.answers, self.finish_message = calls, {}, None
        if calls:
            self.refused_names = set()
        errors = {call.id: call.error for call in calls if call.error is not None}
        fields: dict[str, Any] = {"message": redacted, "used": _usage_to_list(usage), "errors": errors}
        fields |= self._offer_fields
        self._offer_fields = {}
        if source:
            self.call_sources[calls[0].id] = source
            fields |= {"source": source} if redacted == message else {}
        if cost is not None:
            fields["cost"] = cost
        self._write("message", **fields)

    def wait_for(self, request: ApprovalRequest | Question) -> None:
        """Note what a person must decide or answer before the run can go on, with the reason in their language."""
        if isinstance(request, Question):
            self.questions[request.call_id] = request
        else:
            reason = translate_error(request.reason, detect_language(self.task))
            self.approvals[request.call_id] = replace(request, reason=reason)

    def wait(self) -> None:
        """Let the run wait for people. A resumed run that waits for the same as before writes nothing."""
        self.state = AgentState.WAITING
        if self.open_requests <= self._stored_requests:
            return
        questions = [asdict(question) for question in self.questions.values()]
        approvals = [asdict(request) for request in self.approvals.values()]
        self._write("wait", questions=questions, approvals=approvals)

    def set_running(self) -> None:
        if self.state is AgentState.WAITING:
            self._stored_requests = self.open_requests
        self.state = AgentState.RUNNING

    def end(self, state: AgentState, text: str, reason: str = "") -> None:
        self._apply_end(state, text, reason)
        self._write("end", state=state.value, text=text, reason=reason)

    def interrupt(self, error: BaseException) -> None:
        """Record why the run ended before it was done. It can be resumed."""
        if self.state is AgentState.RUNNING:
            self.end(AgentState.INTERRUPTED, "", describe_interruption(error))

    def answer(self, summary: Mapping[str, Any]) -> AgentAnswer[Any]:
        """Return what the run has come to. `summary` is that of its calls."""
        return AgentAnswer(
            run_id=self.id,
            question=self.task,
            strategy="loop" if self.workflow is None else "plan",
            state=self.state,
            text=self.text,
            plan=self.plan,
            steps=tuple(self.steps),
            usage=self.usage,
            cost=self.costs.total,
            model_cost=self.costs.models,
            tool_cost=self.costs.tools,
            messages=list(self.messages),
            questions=tuple(self.questions.values()),
            approvals=tuple(self.approvals.values()),
            reason=self.reason,
            has_model_failed=self.has_model_failed,
            errors=(self.reason,) if self.reason and self.state is AgentState.STOPPED else (),
            summary=dict(summary),
            value=self.value,
        )

    def _write(self, kind: str, **fields: Any) -> None:
        self._stored_requests = frozenset()
        if self.usage != self._stored_usage:
            self._stored_usage = self.usage
            if "used" not in fields:
                fields["usage"] = _usage_to_list(self.usage)
        if (costs := self.costs.to_dict()) != self._stored_costs:
            fields["costs"] = self._stored_costs = costs
        if self._known_secrets != len(self.secrets):  # the entries before may contain the new ones
            self._known_secrets = len(self.secrets)
            for key, entry in self._entries.items():
                if (redacted := self._redact(entry)) != entry:
                    self._store_entry(key, redacted)
        self.entry_count += 1
        entry = self._redact({"kind": kind, "seconds": self.seconds, **fields})
        self._store_entry(f"{self.entry_count:08}", entry)

    def _store_entry(self, key: str, entry: Mapping[str, Any]) -> None:
        self._entries[key] = entry
        self._store.write_entry(RUN_PREFIX + self.id, key, entry)

    def _redact(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.secrets:
            return entry
        return {name: value if name in _NEVER_SECRET else self.secrets.redact(value) for name, value in entry.items()}

    def _apply_begin(self, messages: Iterable[Message], workflow: str | None, history: str) -> None:
        self.messages += messages
        self.begin_length, self.workflow, self.history = len(self.messages), workflow, history
        self.call_ids |= {call["id"] for message in self.messages for call in message.get("tool_calls") or ()}

    def _apply_end(self, state: AgentState, text: str, reason: str) -> None:
        self.state, self.text, self.reason = state, text, reason
        self.questions, self.approvals = {}, {}
        if self.workflow is not None and text:  # the answer of the loop is the model's last message
            self.messages.append(assistant_message(text))

    def _apply_step(self, step: StepResult) -> None:
        self.steps.append(step)
        self.questions.pop(step.id, None)
        self.approvals.pop(step.id, None)
        if self.workflow is not None:
            self.messages += _messages_of_step(step)
            return
        for name in (step.tool_id, step.tool_type):
            self._names_in_steps.pop(name, None)
            self._names_in_steps[name] = None
        if not step.success:
            self.failed_calls.add(step.id)
        self.answers[step.id] = step
        if len(self.answers) == len(self.open_calls):
            self.messages += [tool_message(call, self.answers[call.id].text_for_model) for call in self.open_calls]
            self.open_calls, self.answers = [], {}

    # Loading a run after a pause or a crash

    @classmethod
    async def load(cls, run_id: str, store: ToolKnowledgeStore) -> Run:
        """Rebuild a run from its entries."""
        entries = await store.read_entries(RUN_PREFIX + run_id)
        if not entries:
            raise SetupError(f"There is no run {run_id!r} in this store. `ferrule runs list` lists the runs.")
        run: Run | None = None
        for entry in entries.values():
            if run is None:
                run = cls(str(entry.get("task", "")), store, run_id)
            run._replay(entry)
        assert run is not None
        run._entries, run.entry_count = dict(entries), int(max(entries))
        return run

    @classmethod
    async def load_and_detect_interruption(cls, run_id: str, store: ToolKnowledgeStore) -> Run:
        """Return the run. It is interrupted if its process is gone, although its entries do not say so."""
        run = await cls.load(run_id, store)
        if run.state is AgentState.RUNNING and not await store.is_locked(RUN_PREFIX + run_id):
            run = await cls.load(run_id, store)  # it may have ended in the meantime
            if run.state is AgentState.RUNNING:
                run.state, run.reason = AgentState.INTERRUPTED, "its process ended before the run did"
        return run

    @classmethod
    async def list_stored(cls, store: ToolKnowledgeStore, limit: int) -> list[StoredRun]:
        """Return the latest runs in the store, the last one first."""
        runs = []
        for stream, written_at in islice((await store.list_streams(RUN_PREFIX)).items(), limit):
            run = await cls.load_and_detect_interruption(stream.removeprefix(RUN_PREFIX), store)
            at = datetime.fromtimestamp(written_at, UTC)
            runs.append(StoredRun(run_id=run.id, state=run.state, task=run.task, reason=run.reason, written_at=at))
        return runs

    def _replay(self, entry: Mapping[str, Any]) -> None:
        kind = entry.get("kind")
        self._seconds_before = float(entry.get("seconds", self._seconds_before))
        if "used" in entry:
            self.usage += _usage_from_list(entry["used"])
        elif "usage" in entry:
            self.usage = _usage_from_list(entry["usage"])
        self._stored_usage = self.usage
        if "costs" in entry:
            self._stored_costs = entry["costs"]
            self.costs = RunCosts(**entry["costs"])
        if kind == "begin":
            self._apply_begin(entry.get("messages", ()), entry.get("workflow"), entry.get("history", ""))
        elif kind == "message":
            self._replay_message(entry)
        elif kind == "step":
            step = StepResult.from_dict(entry["step"])
            self._apply_step(step)
            if self.workflow is not None:
                self.state = AgentState.RUNNING
            elif step.tool_id == "finish_task" and step.success:
                self.finish_message = str(step.arguments.get("message", ""))
        elif kind == "wait":
            self.state, questions, approvals = AgentState.WAITING, entry["questions"], entry["approvals"]
            self.questions = {q["call_id"]: Question(**{**q, "options": tuple(q["options"])}) for q in questions}
            self.approvals = {request["call_id"]: ApprovalRequest(**request) for request in approvals}
        elif kind == "plan":
            self.plan, self.state = Plan.from_dict(entry["plan"]), AgentState.RUNNING
        elif kind == "end":
            self._apply_end(AgentState(entry["state"]), entry["text"], entry["reason"])

    def _replay_message(self, entry: Mapping[str, Any]) -> None:
        message = entry["message"]
        self.messages.append(message)
        self.state = AgentState.RUNNING
        if "used" in entry:
            self.turns += 1
            self.open_calls = [
                self._decode_call(call, entry.get("errors", {})) for call in message.get("tool_calls") or ()
            ]
            self.answers, self.finish_message = {}, None
            self.call_ids |= {call.id for call in self.open_calls}
            # The model was asked again, so no budget is waited for any more.
            self.approvals = {key: each for key, each in self.approvals.items() if not is_extension_request(each)}
            if entry.get("source") and self.open_calls:
                self.call_sources[self.open_calls[0].id] = entry["source"]

    def _decode_call(self, data: Mapping[str, Any], errors: Mapping[str, str]) -> ToolCall:
        """Return a call of a stored message. A call that was rejected then must stay rejected."""
        function = data["function"]
        call = decode_tool_call(function["name"], function["arguments"], id=data["id"])
        error = errors.get(call.id) or call.error
        if error is None and self._store.redaction.replacement in str(function["arguments"]):
            error = _SECRET_LOST
        return replace(call, error=error)


def _usage_to_list(usage: Usage) -> list[int]:
    return [usage.requests, usage.input_tokens, usage.output_tokens, usage.cached_tokens]


def _usage_from_list(used: Sequence[int]) -> Usage:
    requests, input_tokens, output_tokens, cached_tokens = used
    return Usage(requests=requests, input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)


def _messages_of_step(step: StepResult) -> list[Message]:
    """Return a step of a plan as the messages of a conversation: as a tool call with its result."""
    text = step.result if step.success else step.error or "failed"
    if step.tool_type == NO_TOOL or step.skipped:
        return [assistant_message(f"{step.description}: {text}")]
    call = ToolCall(name=step.tool_type, arguments=dict(step.arguments), id=f"step-{step.step_id}-1")
    full = as_text(step.output) if step.success and step.output is not None else text
    return [assistant_message(step.description, [call]), tool_message(call, full)]


def new_run_id() -> str:
    return uuid4().hex[:16]


def describe_interruption(error: BaseException) -> str:
    """Return the reason why a run was interrupted, from the exception that ended it."""
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
        return "it was cancelled"
    return error_text(error) if isinstance(error, FerruleError) else f"{type(error).__name__}: {error_text(error)}"


@asynccontextmanager
async def lock_run(store: ToolKnowledgeStore, run_id: str) -> AsyncIterator[StoreLock]:
    """Hold the lock of a run. Only one caller at a time may work on a run: two would execute every call twice."""
    try:
        async with store.lock(RUN_PREFIX + run_id) as lock:
            yield lock
    except LockHeld as error:
        if error.name != RUN_PREFIX + run_id:
            raise
        if isinstance(error, LockLost):
            raise RunInterrupted(
                f"The run {run_id!r} was interrupted here, because its lock was lost with the connection to the store; "
                "another process may have continued it. Resume it when the store can be reached."
            ) from None
        raise RunInProgress(
            f"The run {run_id!r} is in progress, here or in another process. Wait for its answer, or end it."
        ) from None
