"""Redundancy: tools that can do the same job back each other up, race, or are combined.

Every call goes through the engine's one door. The hub only decides which candidates are called, with which
arguments, when, and what is made of their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import InvalidArguments
from ferrule.hub.answer import Attempt, Ending, Job, JobKey
from ferrule.hub.candidate import CandidateIndex, ToolCandidate
from ferrule.hub.config import HubConfig
from ferrule.hub.extra_calls import ExtraCalls
from ferrule.hub.fitting import Fitting
from ferrule.hub.lists import merged_lists
from ferrule.hub.pace import Pace
from ferrule.hub.race import gather, race
from ferrule.hub.strategy import Strategy, strategy_for
from ferrule.hub.synthesis import Synthesizer, synthesize


class ToolHub:
    """Calls whatever can do a job: one tool, the first that answers, or several whose answers are combined."""

    def __init__(
        self,
        engine: ToolEngine,
        *,
        model: Synthesizer | None = None,
        config: HubConfig | None = None,
        chance: Random | None = None,
    ) -> None:
        self.engine = engine
        self.model = model
        self.config = config or HubConfig()
        self._chance = chance or Random()
        self._fitting = Fitting(strict=engine.config.strict_validation)
        self._pace = Pace(engine, unknown=self.config.stagger)
        self._extra = ExtraCalls(share=self.config.extra_share, burst=self.config.extra_burst)
        self._last_success: dict[JobKey, tuple[str, str]] = {}
        """By what was wanted: the source and the id of the tool that last did it."""
        self._index: CandidateIndex | None = None

    async def execute(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
    ) -> ToolExecutionResult:
        """Let the tools of a name do a job. Whatever goes wrong is in the result."""
        found = self._known().named(name, action)
        job = Job(wanted=name, action=action, params=_plain(params), context=context, skipped=list(found.skipped))
        if allowed := _allowed(found.candidates, context):
            return await self._do(job, allowed)
        if found.candidates and context is not None:
            message = f"Tool {name!r} is not among the tools that may be used here."
            return job.answer(self.engine.refuse(name, params, context, message, action=action))
        # The engine says best why there is no such tool, and records that it was asked for.
        return job.answer(await self.engine.execute(name, params, context, action=action))

    async def execute_by_capability(
        self,
        tag: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
    ) -> ToolExecutionResult:
        """Let the tools with a tag do a job, whatever they are called."""
        known = self._known()
        found = known.tagged(tag)
        job = Job(wanted=tag, tag=tag.casefold(), params=_plain(params), context=context, skipped=list(found.skipped))
        if allowed := _allowed(found.candidates, context):
            return await self._do(job, allowed)
        return job.not_found(f"No enabled tool can be called by the tag {tag!r}.{known.near_tags(tag)}")

    def find_by_name(self, name: str, action: str | None = None) -> list[ToolCandidate]:
        return list(self._known().named(name, action).candidates)

    def find_by_capability(self, tag: str) -> list[ToolCandidate]:
        return list(self._known().tagged(tag).candidates)

    # The story of one job

    async def _do(self, job: Job, candidates: Sequence[ToolCandidate]) -> ToolExecutionResult:
        if len(candidates) == 1:
            return await self._only(job, candidates[0])
        attempts = self._fit(job, self._order(job, candidates))
        strategy = strategy_for([attempt.candidate for attempt in attempts], job.tag)
        together, rest = self._split(attempts, strategy)
        answer = None
        if together and strategy == "synthesize":
            answer = await self._combine(job, together)
        elif together:
            answer = await self._pick(job, together)
        return answer if answer is not None else await self._one_by_one(job, rest)

    # The steps of a job

    async def _only(self, job: Job, candidate: ToolCandidate) -> ToolExecutionResult:
        try:
            params = self._fitting.fit(candidate.capability, job.params)
        except InvalidArguments:
            params = job.params  # the engine tells the caller all that is wrong
        ending = await self._call(job, Attempt(candidate=candidate, params=params))
        return job.answer(ending.result, candidate)

    def _order(self, job: Job, candidates: Sequence[ToolCandidate]) -> list[ToolCandidate]:
        """The last to succeed first, then by source; equals in any order, so that load spreads."""
        ordered = list(candidates)
        self._chance.shuffle(ordered)
        last = self._last_success.get(job.key)
        return sorted(ordered, key=lambda c: ((c.source, c.name) != last, c.priority))

    def _fit(self, job: Job, candidates: Sequence[ToolCandidate]) -> list[Attempt]:
        """The candidates the arguments can be fitted to."""
        attempts = []
        for candidate in candidates:
            try:
                params = self._fitting.fit(candidate.capability, job.params)
            except InvalidArguments as error:
                job.skip(candidate, str(error))
            else:
                attempts.append(Attempt(candidate=candidate, params=params))
        return attempts

    def _split(self, attempts: list[Attempt], strategy: Strategy) -> tuple[list[Attempt], list[Attempt]]:
        """Those that are called together, and those that are called one by one if need be."""
        together = [attempt for attempt in attempts if attempt.candidate.may_race][: self.config.max_parallel]
        if len(together) < 2 or (strategy == "best" and attempts[0] not in together):
            return [], attempts
        return together, [attempt for attempt in attempts if attempt not in together]

    async def _pick(self, job: Job, attempts: list[Attempt]) -> ToolExecutionResult | None:
        winner = await race(attempts, partial(self._call, job), self._pace, self._extra)
        return None if winner is None else self._succeed(job, winner)

    async def _combine(self, job: Job, attempts: list[Attempt]) -> ToolExecutionResult | None:
        endings, late = await gather(attempts, partial(self._call, job), self.config.patience)
        for attempt in late:
            job.skip(attempt.candidate, "It was stopped, because it took much longer than others that answered.")
        answers = [ending for ending in endings if ending.is_answer]
        if len(answers) < 2:
            return self._succeed(job, answers[0]) if answers else None
        self._remember(job, answers[0])
        lists = merged_lists([answer.result.output for answer in answers])
        if lists is not None:
            return job.combined(answers, lists, "lists")
        text, synthesis = await synthesize(job, answers, self.model, self.config.synthesis_timeout)
        return job.combined(answers, {"result": text}, synthesis)

    async def _one_by_one(self, job: Job, attempts: list[Attempt]) -> ToolExecutionResult:
        for position, attempt in enumerate(attempts):
            if (silent := job.done_before(attempt.candidate)) is not None:
                job.skip(attempt.candidate, f"{silent.candidate.label} has succeeded already.")
                continue
            ending = await self._call(job, attempt)
            if ending.is_answer:
                return self._succeed(job, ending)
            if (why := _why_nobody_else(ending)) is not None:
                for left in attempts[position + 1 :]:
                    job.skip(left.candidate, f"{ending.candidate.label} {why}")
                return job.answer(ending.result, ending.candidate)
        return job.failure() if job.empty is None else self._succeed(job, job.empty)

    # Small parts of the steps

    async def _call(self, job: Job, attempt: Attempt) -> Ending:
        candidate = attempt.candidate
        result = await self.engine.execute_candidate(
            candidate.tool, candidate.capability.name, attempt.params, job.context
        )
        if result.is_success:
            self._pace.note(candidate, result)
        ending = Ending(candidate=candidate, result=result)
        job.ended.append(ending)
        return ending

    def _succeed(self, job: Job, ending: Ending) -> ToolExecutionResult:
        self._remember(job, ending)
        return job.answer(ending.result, ending.candidate)

    def _remember(self, job: Job, ending: Ending) -> None:
        self._last_success[job.key] = (ending.candidate.source, ending.candidate.name)

    def _known(self) -> CandidateIndex:
        snapshot = self.engine.registry.snapshot()
        if self._index is None or self._index.snapshot is not snapshot:
            self._index = CandidateIndex(snapshot)
        return self._index


def _allowed(candidates: Sequence[ToolCandidate], context: ToolExecutionContext | None) -> Sequence[ToolCandidate]:
    """The candidates that the caller may use: having the name of one that is allowed is not enough."""
    if context is None or context.allowed_tools is None:
        return candidates
    allowed = context.allowed_tools
    return [candidate for candidate in candidates if not allowed.isdisjoint(candidate.names)]


def _why_nobody_else(ending: Ending) -> str | None:
    """Why a job that failed is not given to the next candidate; None when it may be."""
    if ending.may_have_happened:
        return "failed, but may have done it already."
    if ending.needs_approval and not ending.candidate.effects.repeatable:
        return "waits for a person's approval."  # nobody must do meanwhile what was not agreed to
    return None


def _plain(params: Mapping[str, Any] | None) -> Any:
    """The arguments as a dictionary of their own; what is no mapping stays, for the check to say so."""
    return dict(params) if isinstance(params, Mapping) else {} if params is None else params
