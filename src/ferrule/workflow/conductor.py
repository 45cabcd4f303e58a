"""Doing a plan: every step as soon as what it needs is there, many at once.

The conductor knows no graph library and writes nothing down: workflows ask it to go on, keep what it gives them, and
can make another one from what they kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ferrule.errors import PERMISSION_DENIED, ToolNotFound
from ferrule.library import UnifiedToolLibrary
from ferrule.memory.alternatives import Alternative, alternative_tools
from ferrule.spec import Effects
from ferrule.workflow.budget import Budget
from ferrule.workflow.execution import (
    STOPPED,
    UNKNOWN_OUTCOME,
    ExecutionAgent,
    NeedsPerson,
    Request,
    Word,
    failed,
    may_be_repeated,
    skipped,
)
from ferrule.workflow.plan import ASK_USER, NO_TOOL, Plan, PlanStep, StepId
from ferrule.workflow.planning import PlanningAgent
from ferrule.workflow.recovery import Records
from ferrule.workflow.results import StepContext, StepResult, Verification
from ferrule.workflow.verification import VerificationAgent

SIMILAR: Final = 0.4
"""How well another tool must fit to be asked instead."""
REVISIONS: Final = 2
"""How many bad results may lead to a new plan."""
_FINAL: Final = frozenset({UNKNOWN_OUTCOME, PERMISSION_DENIED, STOPPED})
"""What no other plan may try to get round: what may have happened, and what somebody does not want."""
_IN_PERSON: Final = Verification(verified=True, confidence=1.0)


class Conductor:
    """One plan on its way."""

    def __init__(
        self,
        plan: Plan,
        context: StepContext,
        *,
        library: UnifiedToolLibrary,
        planning: PlanningAgent,
        execution: ExecutionAgent,
        verification: VerificationAgent,
        budget: Budget,
        records: Records | None = None,
    ) -> None:
        """`records` are those of an earlier life of the run: what was done then is not done again."""
        self.plan, self.context = plan, context
        self._library, self._planning = library, planning
        self._execution, self._verification = execution, verification
        self._budget = budget
        self._records = records or Records()
        self._running: dict[str, asyncio.Task[StepResult]] = {}
        self._instead: dict[str, PlanStep] = {}
        """Steps that are done once more, with another tool. The plan has them so when they have their results."""
        self._doubted: dict[str, StepResult] = {}
        """What those came to the first time."""
        self.waiting: dict[str, Request] = {}
        """What people are asked, by the step."""
        self._words: dict[str, Word] = {}
        self.stopped: str | None = None
        """Which limit it has come to, if it has."""

    @property
    def is_done(self) -> bool:
        return len(self.context.results) == len(self.plan.steps)

    @property
    def in_order(self) -> list[StepResult]:
        """The results there are, in the order of the plan."""
        results = self.context.results
        return [results[str(step.id)] for step in self.plan.steps if str(step.id) in results]

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can go on before somebody has spoken."""
        return not self._running and bool(self.waiting)

    @property
    def may_think(self) -> bool:
        """Whether the model may be asked for the answer."""
        return self.stopped is None and self._budget.may_think

    def take_words(self, words: Mapping[str, Word]) -> None:
        """Let steps go on that people have spoken about."""
        for step_id, word in words.items():
            self._words[step_id] = word
            self.waiting.pop(step_id, None)

    async def advance(self) -> list[StepResult]:
        """Begin what can begin and wait for the next results; none when all is done or somebody must speak first."""
        settled = self._begin()
        if settled or not self._running:
            return settled
        ended = await self._first_to_end()
        if not ended:
            return await self._break_off()
        found = []
        for step_id, task in list(self._running.items()):
            if task in ended:
                del self._running[step_id]
                try:
                    found.append(task.result())
                except NeedsPerson as asked:
                    self.waiting[step_id] = asked.request
                    self._budget.calls -= _is_call(self.plan[step_id])  # it was not made
        return found

    async def _first_to_end(self) -> Collection[asyncio.Task[StepResult]]:
        """The tasks that have ended; none when the time is up."""
        seconds, tasks = self._budget.seconds_left, self._running.values()
        if seconds is None and len(tasks) == 1:  # as in every chain; to wait for one costs less than for any
            with suppress(Exception):
                await next(iter(tasks))
            return list(tasks)
        ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return ended

    async def verify(self, result: StepResult) -> StepResult | None:
        """The result with what is to be said about it; None when the step is done once more, with another tool."""
        step = self.plan[result.step_id]
        if step.tool_type == ASK_USER and result.success:
            result.verification = _IN_PERSON
            return result
        result.verification = await self._verification.verify_result(result, self.context, step.expected)
        if (first := self._doubted.pop(str(step.id), None)) is not None:
            return self._better(first, result)
        if result.success and result.is_doubtful and self._try_another(step):
            self._doubted[str(step.id)] = result
            return None
        return result

    def settle(self, result: StepResult) -> None:
        """Take a result as that of its step."""
        self.context.results[str(result.step_id)] = result
        changed = self._instead.pop(str(result.step_id), None)
        if changed is not None:
            self.plan = replace(self.plan, steps=tuple(changed if s.id == changed.id else s for s in self.plan.steps))

    @property
    def needs_revision(self) -> bool:
        """Whether a result is so bad that what comes after it should be planned anew."""
        if len(self.plan.revised_for) >= REVISIONS or not self._planning.can_revise:
            return False
        considered = {str(one) for one in self.plan.revised_for}
        is_bad = any(str(one) not in considered for one in self._bad)
        return is_bad and self._budget.reached is None

    @property
    def _bad(self) -> list[StepId]:
        results = self.context.results.values()
        return [one.step_id for one in results if one.is_doubtful and one.error_type not in _FINAL]

    async def revise(self) -> None:
        """Plan anew what waits for what is bad, or for what has not begun."""
        kept, context = self._kept(), self.context
        self.plan = await self._planning.revise(
            context.question,
            self.plan,
            context.results,
            kept,
            bad=self._bad,
            once=[step for step in kept if self._is_for_once(step)],
            history=context.history,
        )

    async def stop(self) -> None:
        """End what is running."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> list[StepResult]:
        """Start the steps that can start; returns those that are passed over because what they need failed."""
        passed_over = []
        for step in self.plan.steps:
            step_id = str(step.id)
            if step_id in self.context.results or step_id in self._running:
                continue
            if step_id in self.waiting and self.stopped is None:
                continue
            needed = [self.context.results.get(str(one)) for one in step.dependencies]
            bad = next((one for one in needed if one is not None and not one.success), None)
            if bad is not None:
                passed_over.append(skipped(step, bad))
                continue
            if self.stopped is None and None not in needed:
                self.stopped = self._budget.reached  # only where something is left to do
            if self.stopped is not None:
                self.waiting.pop(step_id, None)
                passed_over.append(replace(failed(step, f"It was not begun: {self.stopped}.", STOPPED), skipped=True))
            elif None not in needed:
                self._budget.calls += _is_call(step)
                self._running[step_id] = asyncio.create_task(self._do(step), name=f"ferrule-step-{step_id}")
        return passed_over

    async def _break_off(self) -> list[StepResult]:
        """The time is up: end what is running, and say of each whether it may have done something."""
        self.stopped = self._budget.reached or "its time was up"
        steps = [self.plan[step_id] for step_id in self._running]
        await self.stop()
        registry = self._library.engine.registry
        return [
            failed(
                step,
                f"It was broken off: {self.stopped}.",
                STOPPED if may_be_repeated(step, registry) else UNKNOWN_OUTCOME,
            )
            for step in steps
        ]

    def _kept(self) -> list[PlanStep]:
        """The steps that have begun, or could; and what they need: in a life that was cut short it may be lost."""
        bad = set(map(str, self._bad))
        kept = {str(step.id) for step in self.plan.steps if self._has_begun(step) or self._is_ready(step, bad)}
        for step in reversed(self.plan.steps):
            if str(step.id) in kept:
                kept.update(map(str, step.dependencies))
        return [step for step in self.plan.steps if str(step.id) in kept]

    def _is_ready(self, step: PlanStep, bad: Collection[str]) -> bool:
        needed = [self.context.results.get(str(one)) for one in step.dependencies]
        return all(one is not None and one.success and str(one.step_id) not in bad for one in needed)

    def _is_for_once(self, step: PlanStep) -> bool:
        """Whether no other step may do the same: it has changed the world, or may have, or still will."""
        if may_be_repeated(step, self._library.engine.registry) or not self._execution.is_whole(step):
            return False
        result = self.context.results.get(str(step.id))
        return result is None or result.success or result.error_type == UNKNOWN_OUTCOME

    def _has_begun(self, step: PlanStep) -> bool:
        step_id = str(step.id)
        # Also one that somebody has spoken about, or that is done once more: its id is not free for another step.
        begun: Sequence[Mapping[str, object]] = (
            self.context.results,
            self._running,
            self.waiting,
            self._words,
            self._instead,
        )
        return any(step_id in those for those in begun) or self._records.know(step)

    async def _do(self, step: PlanStep) -> StepResult:
        step_id = str(step.id)
        step, attempt = self._instead.get(step_id, step), 1 + (step_id in self._instead)
        known = self._records.result_of(step, attempt, self._library)
        if known is not None:
            return known
        # A word is good for one call: with another tool, or other arguments, the person is asked again.
        word = self._words.pop(step_id, None)
        return await self._execution.execute_step(step, self.context, attempt=attempt, word=word)

    def _try_another(self, step: PlanStep) -> bool:
        """Whether another tool can do the step: then it is done with that one."""
        if step.tool_type == NO_TOOL:
            return False
        registry = self._library.engine.registry
        try:
            tool, capability = registry.find(step.tool_type)
        except ToolNotFound:  # it was taken out meanwhile
            return False
        effects = tool.spec.effects_of(capability)
        if not effects.repeatable:
            return False
        snapshot = registry.snapshot()
        allowed = filter(self._execution.may_use, snapshot.by_id)
        tools = [one.spec for name in allowed if (one := snapshot.get(name)) is not None]
        others = [
            other
            for other in alternative_tools(
                tool, capability, step.parameters, tools, failed={tool.id}, task=step.description, most=len(tools)
            )
            if _is_as_harmless(other, effects)
        ]
        if not others or others[0].score < SIMILAR:
            return False
        spec, action = others[0].spec, others[0].action
        found = spec.capability(action) or spec.capabilities[0]
        self._instead[str(step.id)] = replace(step, tool_type=spec.model_name(found))
        return True

    def _better(self, first: StepResult, second: StepResult) -> StepResult:
        """Of what two tools came to, what can be believed more. A doubtful result is better than none."""
        assert first.verification is not None and second.verification is not None
        if second.success and second.verification.confidence >= first.verification.confidence:
            return replace(second, attempts=(*first.attempts, *second.attempts))
        self._instead.pop(str(first.step_id), None)
        return replace(first, attempts=(*first.attempts, *second.attempts))


def _is_call(step: PlanStep) -> bool:
    return step.tool_type not in (NO_TOOL, ASK_USER)


def _is_as_harmless(other: Alternative, effects: Effects) -> bool:
    """Whether it changes no more than the tool it is to stand in for: nobody has asked for more."""
    capability = other.spec.capability(other.action) or other.spec.capabilities[0]
    does = other.spec.effects_of(capability)
    return does.read_only or (does.repeatable and not does.destructive and not effects.read_only)
