"""One run: its messages, its steps, what it waits for; written down as it goes.

Everything that happens is one note in the run's book (see `ferrule.store.notes`), appended and never rewritten, so the
hundredth turn costs what the first did. The history is what these notes say: a process that is killed between
any two of them leaves a run that another can go on with.

    begin    what was asked, with all that is said before the model speaks
    message  something the system, the user or the model said
    answer   what came of one call, as soon as it is there
    wait     what a person is asked
    end      how it ended; a run that goes on after that says so by what follows
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final
from uuid import uuid4

from ferrule.agent.answer import AgentAnswer, AgentState, AgentStep, ApprovalRequest, Question
from ferrule.errors import SetupError
from ferrule.memory import ExecutionContext
from ferrule.messages import Message, ToolCall, Usage, tool_message
from ferrule.models.arguments import read_call
from ferrule.store import ToolKnowledgeStore

BOOKS = "run:"
_STEP = tuple(field.name for field in fields(AgentStep))
_LOST: Final = (
    "This call was not made: it carried a secret, and secrets are not kept while a run waits or is interrupted. "
    "Make it again with the value itself, or ask for it."
)


class Run:
    """The state of one run."""

    def __init__(self, task: str, store: ToolKnowledgeStore, run_id: str | None = None) -> None:
        self.id = run_id or uuid4().hex[:16]
        self.task = task
        self.state = AgentState.RUNNING
        self.messages: list[Message] = []
        self.steps: list[AgentStep] = []
        self.usage = Usage()
        self.turns = 0
        self.context = ExecutionContext(task_description=task)
        self.open_calls: list[ToolCall] = []
        """Asked for in the last turn, not all answered yet."""
        self.answers: dict[str, AgentStep] = {}
        """Of the open calls, by their ids."""
        self.questions: dict[str, Question] = {}
        self.approvals: dict[str, ApprovalRequest] = {}
        self.text = ""
        self.reason = ""
        self.finished_with: str | None = None
        """What `finish_task` said, once it did."""
        self._planned: set[str] = set()
        self.ids: set[str] = set()
        """Of all its calls so far."""
        self.secrets: tuple[str, ...] = ()
        """Texts that are not written down: values of parameters that tools declare secret."""
        self._store, self._entries = store, 0
        self._seconds_before, self._started = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    @property
    def planned(self) -> int:
        """Steps of a plan that were done, where there is one."""
        return len(self._planned)

    @property
    def is_waiting(self) -> bool:
        return bool(self.questions or self.approvals)

    async def exists(self) -> bool:
        """Whether something is written down under its id."""
        return bool(await self._store.notes(BOOKS + self.id))

    # What happens, in the order it does

    def begin(self, messages: Iterable[Message]) -> None:
        self.messages += messages
        self.ids |= {asked["id"] for message in self.messages for asked in message.get("tool_calls") or ()}
        self._write("begin", task=self.task, messages=self.messages)

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._write("message", message=message)

    def said(self, message: Message, calls: list[ToolCall], usage: Usage, *, kept: Message) -> None:
        """The model has spoken; its calls are open from now on. `kept` is the message as it may be written down."""
        self.turns += 1
        self.usage += usage
        self.messages.append(message)
        self.open_calls, self.answers, self.finished_with = calls, {}, None
        used = [usage.requests, usage.input_tokens, usage.output_tokens, usage.cached_tokens]
        errors = {call.id: call.error for call in calls if call.error is not None}
        kept = {**kept, "content": self._without_secrets(kept["content"])}
        self._write("message", message=kept, used=used, errors=errors, seconds=self.seconds)

    def answered(self, step: AgentStep) -> None:
        """One call has its answer. When all have theirs, they stand in the history in the order of the calls."""
        kept = {name: getattr(step, name) for name in _STEP}
        self._write("answer", step={**kept, "text": self._without_secrets(step.text)})
        self._take(step)

    def wait(self, *, is_noted: bool = False) -> None:
        self.state = AgentState.WAITING
        if is_noted:
            return
        asked = [asdict(question) for question in self.questions.values()]
        requests = [asdict(request) for request in self.approvals.values()]
        self._write("wait", questions=asked, approvals=requests)

    def go_on(self) -> None:
        self.state = AgentState.RUNNING

    def end(self, state: AgentState, text: str, reason: str = "") -> None:
        self.state, self.text, self.reason = state, text, reason
        text, reason = self._without_secrets(text), self._without_secrets(reason)
        self._write("end", state=state.value, text=text, reason=reason, seconds=self.seconds)

    def answer(self, summary: Mapping[str, Any]) -> AgentAnswer:
        return AgentAnswer(
            run_id=self.id,
            state=self.state,
            text=self.text,
            steps=list(self.steps),
            usage=self.usage,
            messages=list(self.messages),
            questions=list(self.questions.values()),
            approvals=list(self.approvals.values()),
            reason=self.reason,
            summary=dict(summary),
        )

    def _take(self, step: AgentStep) -> None:
        self.steps.append(step)
        self.answers[step.id] = step
        self.questions.pop(step.id, None)
        self.approvals.pop(step.id, None)
        if len(self.answers) == len(self.open_calls):
            self.messages += [tool_message(call, self.answers[call.id].text) for call in self.open_calls]
            self.open_calls, self.answers = [], {}

    def _without_secrets(self, text: Any) -> Any:
        return self._store.redaction.clean(text, self.secrets) if self.secrets else text

    def _write(self, kind: str, **said: Any) -> None:
        self._entries += 1
        self._store.note(BOOKS + self.id, f"{self._entries:08}", {"kind": kind, **said})

    # Going on after a pause, or after a crash

    @classmethod
    async def load(cls, run_id: str, store: ToolKnowledgeStore) -> Run:
        """The run as it was last written down."""
        entries = await store.notes(BOOKS + run_id)
        if not entries:
            raise SetupError(f"There is no run {run_id!r} in this store. `ferrule runs` lists those there are.")
        run: Run | None = None
        for said in entries.values():
            if run is None:
                run = cls(str(said.get("task", "")), store, run_id)
            run._replay(said)
        assert run is not None
        run._entries = int(max(entries))
        return run

    def _replay(self, said: Mapping[str, Any]) -> None:
        kind = said.get("kind")
        self._seconds_before = float(said.get("seconds", self._seconds_before))
        if kind == "begin":
            self.messages += said.get("messages", ())
            self.ids |= {asked["id"] for message in self.messages for asked in message.get("tool_calls") or ()}
        elif kind == "message":
            self._replay_message(said)
        elif kind == "answer":
            self._replay_answer(AgentStep(**said["step"]))
        elif kind == "wait":
            self.state = AgentState.WAITING
            self.questions = {
                q["call_id"]: Question(**{**q, "options": tuple(q["options"])}) for q in said["questions"]
            }
            self.approvals = {r["call_id"]: ApprovalRequest(**r) for r in said["approvals"]}
        elif kind == "step":
            self._planned.add(str(said["result"]["step_id"]))
            self.state = AgentState.RUNNING
        elif kind == "end":
            self.state, self.text, self.reason = AgentState(said["state"]), said["text"], said["reason"]

    def _replay_message(self, said: Mapping[str, Any]) -> None:
        message = said["message"]
        self.messages.append(message)
        self.state = AgentState.RUNNING
        if "used" in said:
            self.turns += 1
            requests, read, written, cached = said["used"]
            self.usage += Usage(requests=requests, input_tokens=read, output_tokens=written, cached_tokens=cached)
            self.open_calls = [
                self._call_of(asked, said.get("errors", {})) for asked in message.get("tool_calls") or ()
            ]
            self.answers, self.finished_with = {}, None
            self.ids |= {call.id for call in self.open_calls}

    def _replay_answer(self, step: AgentStep) -> None:
        self._take(step)
        if step.tool_id == "finish_task" and step.is_success:
            self.finished_with = str(step.arguments.get("message", ""))

    def _call_of(self, asked: Mapping[str, Any], errors: Mapping[str, str]) -> ToolCall:
        """A call as it stands in a message. One that could not be made then must not be made now."""
        function = asked["function"]
        call = read_call(function["name"], function["arguments"], id=asked["id"])
        error = errors.get(call.id) or call.error
        if error is None and self._store.redaction.replacement in str(function["arguments"]):
            error = _LOST
        return replace(call, error=error)
