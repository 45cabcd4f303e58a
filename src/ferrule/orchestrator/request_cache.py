"""Cached answers to repeated questions: in memory, and in the store so that they survive a restart.

An answer is used again only for the same text, for the same tenant, under the same policy and configuration, and with
the same model and tools. It contains no secrets and nothing that belongs to one conversation.

Callers who ask the same question at the same time share one run (`SharedRuns`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ferrule.agent.answer import AgentAnswer, AgentState, Plan, StepResult
from ferrule.catalog.registry import RegistrySnapshot, ToolRegistry
from ferrule.core.aio import retrieve_exception
from ferrule.core.content import encode_json
from ferrule.core.spec import Effects
from ferrule.errors import SetupError, ToolNotFound
from ferrule.orchestrator.small_talk import depends_on_time, normalize_question, refers_to_history
from ferrule.store import ToolKnowledgeStore
from ferrule.workflow.verification import combine_verifications

STREAM: Final = "answers"
MAX_ANSWERS: Final = 1_000
MAX_QUESTION_LENGTH: Final = 10_000
"""Longer questions are not cached: they are hardly ever repeated."""
_DELETE_BATCH: Final = 100
_MAX_CALLS: Final = 1_000
"""Answers that took more calls are not cached."""
_CONTROL_TOOLS: Final = frozenset({"none", "finish_task", "search_tools"})
"""Tools without an effect outside the agent or plan that calls them."""
_STORED_FIELDS: Final = ("question", "answer", "strategy", "run_id", "tool_usage_summary", "plan", "steps")


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    result: AgentAnswer
    expires: float


class RequestCache:
    """Answers by question, tools and model."""

    def __init__(self, store: ToolKnowledgeStore, ttl: float | None, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._ttl, self._clock = store, ttl, clock
        self._answers: OrderedDict[str, CachedAnswer] | None = None
        self._removed: list[str] = []
        self._fingerprints: tuple[int, str] = (-1, "")

    def key(self, question: str, registry: ToolRegistry, model: str, *context: Any) -> str | None:
        """Return the cache key of a question: made from its exact text, the tools, the model and the `context`.

        None if the answer cannot be cached: it depends on the time, on chance or on earlier turns, or the question is
        very long.
        """
        if len(question) > MAX_QUESTION_LENGTH or depends_on_time(question) or refers_to_history(question):
            return None
        parts = [normalize_question(question), self._tools_fingerprint(registry), model, *context]
        return sha256(encode_json(parts, sort_keys=True)).hexdigest()[:32]

    async def get(self, key: str) -> AgentAnswer | None:
        if self._ttl is None:
            return None
        answers = await self._load_answers()
        answer = answers.get(key)
        if answer is None:
            return None
        if answer.expires <= self._clock():
            del answers[key]
            self._removed.append(key)
            return None
        answers.move_to_end(key)
        return answer.result

    async def add(self, key: str, result: AgentAnswer, ttl: float) -> None:
        """Store a result that `without_secrets` has returned."""
        answers = await self._load_answers()
        expires = self._clock() + ttl
        answers[key] = CachedAnswer(result, expires)
        answers.move_to_end(key)
        if len(answers) > MAX_ANSWERS:
            self._removed.append(answers.popitem(last=False)[0])
        self._store.write_entry(STREAM, key, {"until": expires, "result": _encode_result(result)})
        if len(self._removed) >= _DELETE_BATCH:
            removed, self._removed = self._removed, []
            await self._store.delete_entries(STREAM, [key for key in removed if key not in answers])

    def without_secrets(self, result: AgentAnswer) -> AgentAnswer | None:
        """Return the result as other callers may see it, or None if its answer has a secret."""
        result = replace(result, messages=[])
        encoded = _encode_result(result)
        cleaned = self._store.get_run_secrets(result.run_id).redact(encoded)
        if cleaned == encoded:
            return result
        answer = _decode_answer({"result": cleaned, "until": 0.0})
        return answer.result if answer is not None and answer.result.answer == result.answer else None

    async def find_ttl(self, result: AgentAnswer, tools: RegistrySnapshot) -> float | None:
        """Seconds that an answer may be cached: at most as long as the results it is based on; None if not at all."""
        doubtful = result.verification is not None and not result.verification.verified
        if self._ttl is None or not result.is_finished or not result.answer or result.errors or doubtful:
            return None
        seconds = self._ttl
        for step in result.steps:
            effects = _find_effects(step, tools)
            if not step.success or step.is_reasoned_instead or any(not e.cacheable or e.destructive for e in effects):
                return None
            seconds = min([seconds, *(e.cache_ttl for e in effects)])
        return await self._limit_by_nested_calls(seconds, result.run_id, tools)

    async def _limit_by_nested_calls(self, seconds: float, run_id: str, tools: RegistrySnapshot) -> float | None:
        """Limit the seconds by the calls that tools made: a cacheable tool may read what belongs to one conversation.

        An answer for which a person has allowed a call is not cached: the approval was for that call only.
        """
        records = await self._store.query_call_records(conversation_id=run_id, limit=_MAX_CALLS)
        if len(records) == _MAX_CALLS:
            return None
        for record in records:
            if "approval_id" in record.metadata:
                return None
            if record.parent_id is None:
                continue
            try:
                tool, capability = tools.find(record.tool_name, record.action)
            except ToolNotFound:
                return None
            effects = tool.spec.effects_of(capability)
            if not effects.cacheable or effects.destructive:
                return None
            seconds = min(seconds, effects.cache_ttl)
        return seconds

    async def _load_answers(self) -> OrderedDict[str, CachedAnswer]:
        """Return the cached answers. The first call reads them from the store."""
        if self._answers is None:
            entries, now = await self._store.read_entries(STREAM), self._clock()
            if self._answers is None:  # another task may have loaded them in the meantime
                decoded = {key: _decode_answer(entry) for key, entry in entries.items()}
                valid = [(key, a) for key, a in decoded.items() if a is not None and a.expires > now]
                newest = sorted(valid, key=lambda item: item[1].expires)[-MAX_ANSWERS:]
                self._answers = OrderedDict(newest)
                self._removed = [key for key in entries if key not in self._answers]
        return self._answers

    def _tools_fingerprint(self, registry: ToolRegistry) -> str:
        """Return one fingerprint of all callable tools."""
        if self._fingerprints[0] != registry.version:
            tools = registry.snapshot()
            prints = sorted((tool.source, tool.id, tool.spec.fingerprint) for tool in tools if tools.is_callable(tool))
            self._fingerprints = (tools.version, sha256(encode_json(prints)).hexdigest())
        return self._fingerprints[1]


def digest_configuration(*parts: Any) -> str:
    """Return a digest of a policy, limits and other settings, from their `repr`.

    A `repr` with an address, such as that of a function, means something else each time: in another process, and in
    this one when another object gets the address.
    """
    text = repr(parts)
    return sha256(
        (f"{os.urandom(8).hex()} {text}" if " at 0x" in text else text).encode("utf-8", "replace")
    ).hexdigest()


def _encode_result(result: AgentAnswer) -> dict[str, Any]:
    """Return the fields of a result that are the same for every caller."""
    fields = result.to_dict()
    return {name: fields[name] for name in _STORED_FIELDS}


def _decode_answer(entry: Mapping[str, Any]) -> CachedAnswer | None:
    """Decode a stored answer; None if another version wrote it in a different format."""
    try:
        fields = dict(entry["result"])
        text, summary = fields.pop("answer"), fields.pop("tool_usage_summary")
        plan, steps = fields.pop("plan"), tuple(map(StepResult.from_dict, fields.pop("steps")))
        result = AgentAnswer(
            **fields,
            text=text,
            summary=summary,
            state=AgentState.FINISHED,
            plan=None if plan is None else Plan.from_dict(plan),
            steps=steps,
            verification=combine_verifications(steps),
        )
        return CachedAnswer(result, float(entry["until"]))
    except (KeyError, TypeError, ValueError):
        return None


def _find_effects(step: StepResult, tools: RegistrySnapshot) -> list[Effects]:
    """Return the effects of the step's tools, or the worst case if they are not known."""
    if all(attempt.tool in _CONTROL_TOOLS for attempt in step.attempts):
        return []
    names = {attempt.tool for attempt in step.attempts if attempt.level == "name"}
    if len(names) > 1 or any(attempt.level == "capability" for attempt in step.attempts):
        return [Effects()]  # several tools, or any tool with the tag, may have been called
    try:
        _, capability = tools.find(step.tool_type)
    except ToolNotFound:
        return [Effects()]
    candidates = tools.by_id.get(step.attempts[0].tool, ())
    specs = [(tool.spec, tool.spec.capability(capability.name)) for tool in candidates if tools.is_callable(tool)]
    return [spec.effects_of(action) if action is not None else Effects() for spec, action in specs] or [Effects()]


# One run for all callers who ask the same question at the same time. If a caller stops waiting, the run continues for
# the others. When no caller is left, it is cancelled.

T = TypeVar("T")
EventListener: TypeAlias = Callable[[Any], None]


class SharedRun(Generic[T]):
    """A run in progress, and the callers who wait for it."""

    def __init__(self, work: Callable[[EventListener], Awaitable[T]]) -> None:
        self._listeners: list[EventListener] = []
        self._events: list[Any] = []
        self._waiting = 0
        self._is_cancelled = False
        self._task: asyncio.Future[T] = asyncio.ensure_future(work(self._emit))
        self._task.add_done_callback(retrieve_exception)

    @property
    def is_over(self) -> bool:
        """Return whether the run can no longer be joined."""
        return self._is_cancelled or self._task.done()

    def on_end(self, callback: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: callback())

    async def join(self, listener: EventListener | None = None) -> T:
        """Wait for the result. A listener that joins late gets the earlier events first."""
        if listener is not None:
            for event in self._events:
                listener(event)
            self._listeners.append(listener)
        self._waiting += 1
        try:
            # The task is not awaited directly: a cancelled caller would then cancel it for all.
            await asyncio.wait({self._task})
        finally:
            self._waiting -= 1
            if listener is not None:
                self._listeners.remove(listener)
            if not self._waiting and not self._task.done():
                await self.cancel()
        if self._task.cancelled():
            raise SetupError("The question was cancelled because the orchestrator was closed.")
        return self._task.result()

    async def cancel(self) -> None:
        """Cancel the run, and wait until it has ended."""
        self._is_cancelled = True
        self._task.cancel()
        await asyncio.wait({self._task})

    def _emit(self, event: Any) -> None:
        self._events.append(event)
        for listener in self._listeners:
            listener(event)


class SharedRuns(Generic[T]):
    """The runs in progress, by question and by conversation."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], SharedRun[T]] = {}

    def find(self, key: str, conversation_id: str) -> SharedRun[T] | None:
        """Return the run for this question in this conversation."""
        run = self._runs.get((key, conversation_id))
        return None if run is None or run.is_over else run

    def find_any(self, key: str) -> SharedRun[T] | None:
        """Return a run for this question in any conversation."""
        return next((run for (own, _), run in self._runs.items() if own == key and not run.is_over), None)

    def start(self, key: str, conversation_id: str, work: Callable[[EventListener], Awaitable[T]]) -> SharedRun[T]:
        run = self._runs[key, conversation_id] = SharedRun(work)

        def remove() -> None:
            if self._runs.get((key, conversation_id)) is run:  # otherwise a newer run has replaced it
                del self._runs[key, conversation_id]

        run.on_end(remove)
        return run

    async def aclose(self) -> None:
        """Cancel all runs."""
        for run in list(self._runs.values()):
            await run.cancel()
