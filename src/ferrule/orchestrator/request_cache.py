"""Answers that are true for a while, kept for the same question: in memory, and in the store for after a restart."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ferrule.agent import AgentState
from ferrule.content import encode_json
from ferrule.errors import ToolNotFound
from ferrule.orchestrator.about import is_about_history, is_about_the_moment
from ferrule.orchestrator.normalising import normalised
from ferrule.orchestrator.result import OrchestratorResult, verification_of_all
from ferrule.registry import RegistrySnapshot, ToolRegistry
from ferrule.spec import Effects
from ferrule.store import ToolKnowledgeStore
from ferrule.workflow import Plan, StepResult

BOOK: Final = "answers"
MOST: Final = 1_000
LONGEST: Final = 10_000
"""Characters: nobody asks more than that twice."""
_TIDY_EVERY: Final = 100
_HARMLESS: Final = frozenset({"none", "finish_task", "search_tools"})
"""What an agent or a plan does within itself."""
_HOLDING: Final = ("question", "answer", "strategy", "run_id", "tool_usage_summary", "plan", "steps")


@dataclass(frozen=True, slots=True)
class _Kept:
    result: OrchestratorResult
    until: float


class RequestCache:
    """Knows what was answered to a question that would be answered so again."""

    def __init__(self, store: ToolKnowledgeStore, ttl: float | None, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._ttl, self._clock = store, ttl, clock
        self._kept: OrderedDict[str, _Kept] | None = None
        self._gone: list[str] = []
        self._prints: tuple[int, str] = (-1, "")

    def key(self, question: str, registry: ToolRegistry, model: str, *asked: Any) -> str | None:
        """What names the answer: the question, the tools, the model, and whatever else was `asked` with it.

        None for questions whose answers cannot be kept: after the time, after what was said before, by chance,
        or with a whole document in them.
        """
        if len(question) > LONGEST or is_about_the_moment(question) or is_about_history(question):
            return None
        said = [normalised(question), self._fingerprint(registry), model, *asked]
        return sha256(encode_json(said, sort_keys=True)).hexdigest()[:32]

    async def get(self, key: str) -> OrchestratorResult | None:
        kept = await self._load()
        found = kept.get(key)
        if found is None:
            return None
        if found.until <= self._clock():
            del kept[key]
            self._gone.append(key)
            return None
        kept.move_to_end(key)
        return found.result

    async def put(self, key: str, result: OrchestratorResult, ttl: float) -> None:
        kept = await self._load()
        until = self._clock() + ttl
        kept[key] = _Kept(result, until)
        kept.move_to_end(key)
        if len(kept) > MOST:
            self._gone.append(kept.popitem(last=False)[0])
        self._store.note(BOOK, key, {"until": until, "result": _written(result)})
        if len(self._gone) >= _TIDY_EVERY:
            gone, self._gone = self._gone, []
            await self._store.forget_notes(BOOK, [one for one in gone if one not in kept])

    def seconds_for(self, result: OrchestratorResult, tools: RegistrySnapshot) -> float | None:
        """How long an answer holds: no longer than the results it was made of; None if it is not to be kept."""
        doubtful = result.verification is not None and not result.verification.verified
        if self._ttl is None or not result.is_finished or not result.answer or result.errors or doubtful:
            return None
        seconds = self._ttl
        for step in result.steps:
            effects = _effects_in(step, tools)
            if not step.success or any(not one.cacheable or one.destructive for one in effects):
                return None
            seconds = min([seconds, *(one.cache_ttl for one in effects)])
        return seconds

    async def _load(self) -> OrderedDict[str, _Kept]:
        """What is kept; the first time, what the store has."""
        if self._kept is None:
            notes, now = await self._store.notes(BOOK), self._clock()
            if self._kept is None:  # somebody else may have been quicker
                read = {key: kept for key, said in notes.items() if (kept := _read(said)) and kept.until > now}
                newest = sorted(read.items(), key=lambda entry: entry[1].until)[-MOST:]
                self._kept = OrderedDict(newest)
                self._gone = [key for key in notes if key not in self._kept]
        return self._kept

    def _fingerprint(self, registry: ToolRegistry) -> str:
        """Of all tools that can be called, in one."""
        if self._prints[0] != registry.version:
            tools = registry.snapshot()
            said = sorted((tool.source, tool.id, tool.spec.fingerprint) for tool in tools if tools.is_callable(tool))
            self._prints = (tools.version, sha256(encode_json(said)).hexdigest())
        return self._prints[1]


def _written(result: OrchestratorResult) -> dict[str, Any]:
    """What of a result holds for whoever asks again."""
    said = result.to_dict()
    return {name: said[name] for name in _HOLDING}


def _read(said: Mapping[str, Any]) -> _Kept | None:
    """What is written in a note; None for one that another version of us wrote."""
    try:
        written = dict(said["result"])
        plan, steps = written.pop("plan"), tuple(map(StepResult.from_dict, written.pop("steps")))
        result = OrchestratorResult(
            **written,
            state=AgentState.FINISHED,
            plan=None if plan is None else Plan.from_dict(plan),
            steps=steps,
            verification=verification_of_all(steps),
        )
        return _Kept(result, float(said["until"]))
    except (KeyError, TypeError, ValueError):
        return None


def _effects_in(step: StepResult, tools: RegistrySnapshot) -> list[Effects]:
    """What the step may have done to the world, and how long what it saw holds. Nothing is assumed."""
    if all(attempt.tool in _HARMLESS for attempt in step.attempts):
        return []
    named = {attempt.tool for attempt in step.attempts if attempt.level == "name"}
    if len(named) > 1 or any(attempt.level == "capability" for attempt in step.attempts):
        return [Effects()]  # by several tools, or by whichever had the tag
    try:
        _, capability = tools.find(step.tool_type)
    except ToolNotFound:
        return [Effects()]
    candidates = tools.by_id.get(step.attempts[0].tool, ())
    found = [(one.spec, one.spec.capability(capability.name)) for one in candidates if tools.is_callable(one)]
    return [spec.effects_of(action) if action is not None else Effects() for spec, action in found] or [Effects()]
