"""Redundancy: tools that can do the same job back each other up, race, or are combined.

Every call goes through the engine's pipeline. The hub only decides which candidates are called, with which arguments,
when, and how their answers are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Literal

from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.model import Model, can_reason
from ferrule.engine import ToolEngine
from ferrule.errors import TOOL_NOT_FOUND, CallError, FerruleError, InvalidArguments, SetupError, ToolNotFound
from ferrule.hub.candidates import (
    CandidateCall,
    CandidateIndex,
    HubRequest,
    RequestKey,
    ToolCandidate,
    accepts_arguments,
    describe_failure,
    map_arguments,
    source_metadata,
)
from ferrule.hub.race import ExtraCallBudget, LatencyTracker, gather_results, race
from ferrule.hub.synthesis import (
    HubStrategy,
    Synthesizer,
    find_similar,
    merge_page_lists,
    strategy_of_candidates,
    synthesize,
)
from ferrule.policy.policy import Permissions


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """How many candidates are called, when, and how long the hub waits for them. Times are seconds."""

    strategy: Literal["best", "race"] = "best"
    """How the best answer is picked: `best` starts a candidate when the one before is slow or has failed, `race` starts
    all that may run concurrently immediately. A tool may declare its own.
    """
    use_model: bool = True
    """Let a model combine answers, where the caller or the hub has one; otherwise they are merged without it."""
    max_parallel: int = 3
    """Candidates that run concurrently."""
    stagger: float = 0.05
    """Between the starts of two candidates in a race, while nothing is known about the time the first one takes."""
    hedge_share: float = 0.2
    """Average number of extra candidates per race that are started while others still run."""
    hedge_burst: int = 10
    """How many of these may be saved up, and are available at the beginning."""
    gather_timeout: float = 1.0
    """When answers are combined: how long the others have after the first, or twice its own time if that is more.

    `math.inf` waits for all of them, as long as their own timeouts let them run.
    """
    synthesis_timeout: float = 10.0
    """How long the model has to combine answers; after that they are merged without it."""
    destructive_fallback: bool = False
    """Let a destructive tool do a job where a read-only one can do it too."""

    def __post_init__(self) -> None:
        if self.strategy not in ("best", "race"):
            raise SetupError(f"strategy must be 'best' or 'race', not {self.strategy!r}")
        if self.max_parallel < 1:
            raise SetupError(f"max_parallel must be at least 1, not {self.max_parallel!r}")
        for name in ("stagger", "hedge_share", "hedge_burst", "gather_timeout"):
            if not getattr(self, name) >= 0:
                raise SetupError(f"{name} must be 0 or more, not {getattr(self, name)!r}")
        if not self.synthesis_timeout > 0:
            raise SetupError(f"synthesis_timeout must be more than 0 seconds, not {self.synthesis_timeout!r}")


class ToolHub:
    """Calls the tools that can do a job: one tool, the first that answers, or several whose answers are combined."""

    def __init__(
        self,
        engine: ToolEngine,
        *,
        model: Model | Synthesizer | None = None,
        config: HubConfig | None = None,
        random: Random | None = None,
    ) -> None:
        self.engine = engine
        self.model = model
        self.config = config or HubConfig()
        self._random = random or Random()
        self._latencies = LatencyTracker(engine, default=self.config.stagger)
        self._budget = ExtraCallBudget(share=self.config.hedge_share, burst=self.config.hedge_burst)
        self._last_success: dict[RequestKey, tuple[str, str]] = {}
        """The source and the id of the tool that last did the job."""
        self._index: CandidateIndex | None = None
        self._index_version = -1

    async def execute(
        self,
        tool_name: str,
        params: Mapping[str, Any] | str | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult:
        """Let the tools of a name do a job. Whatever goes wrong is in the result.

        A text as `params` is for tools that take one text.
        """
        if not isinstance(tool_name, str) or not (action is None or isinstance(action, str)):
            return await self.engine.execute(tool_name, params, context, action=action, timeout=timeout)
        matches = self._current_index().by_name(tool_name, action)
        if matches.is_partial and self.engine.may_discover(tool_name):
            await self.engine.wait_for_discovery(tool_name)
            matches = self._current_index().by_name(tool_name, action)
        if len(matches.candidates) == 1 and not matches.skipped:
            candidate = matches.candidates[0]
            arguments: Any = params if type(params) is dict else _copy_params(params)
            if isinstance(arguments, str):  # other arguments are validated by the engine alone
                arguments = self._try_map_arguments(candidate, arguments)
            result = await self.engine.execute_candidate(
                candidate.tool, candidate.capability.name, arguments, context, timeout=timeout, on_progress=on_progress
            )
            result.metadata = {**result.metadata, **source_metadata([candidate.source], synthesized=False)}
            if not result.is_success:
                result.metadata["failures"] = [describe_failure(candidate, result)]
            return result
        request = HubRequest(
            name=tool_name,
            action=action,
            params=_copy_params(params),
            context=context,
            timeout=timeout,
            on_progress=on_progress,
            skipped=list(matches.skipped),
        )
        # Tools of one name that declare nothing are taken at their name: document 000 writes them so.
        same_name = [candidate.with_inferred_effects() for candidate in matches.candidates]
        request.inferred = {each.label: each.inferred for each in same_name if each.inferred is not None}
        if candidates := self._select_candidates(request, same_name):
            return await self._call_several(request, candidates)
        # The engine explains best why there is no such tool or why it may not be called, and records the call.
        result = await self.engine.execute(
            tool_name, request.params, context, action=action, timeout=timeout, on_progress=on_progress
        )
        if not result.is_success:
            return request.finish(result)
        # A server that took long to start has listed its actions meanwhile.
        matches = self._current_index().by_name(tool_name, action)
        request.skipped = list(matches.skipped)
        return request.finish(result, *matches.candidates[:1])

    async def execute_by_capability(
        self,
        tag: str,
        params: Mapping[str, Any] | str | None = None,
        context: ToolExecutionContext | None = None,
        *,
        replacing: ToolCandidate | None = None,
    ) -> ToolExecutionResult:
        """Let the tools with a tag do a job, whatever they are called.

        With `replacing`, only those that can do the same as this candidate. `metadata["answered_by"]` names who did it.
        """
        matches = self._current_index().by_tag(tag)
        if matches.is_partial and self.engine.is_discovering:
            await self.engine.wait_for_discovery()
            matches = self._current_index().by_tag(tag)
        request = HubRequest(
            name=tag,
            tag=tag.casefold(),
            params=_copy_params(params),
            context=context,
            replacing=replacing,
            skipped=list(matches.skipped),
        )
        similar = matches.candidates if replacing is None else find_similar(replacing, matches.candidates, tag)
        if candidates := self._select_candidates(request, similar):
            return await self._call_several(request, candidates)
        suggestion = self._current_index().suggest_tags(tag, self._permissions_of(request))
        error = f"No enabled tool can be called by the tag {tag!r}.{suggestion}"
        return self._reject(request, request.make_failure(error, TOOL_NOT_FOUND), ToolNotFound)

    def register(self, *candidates: ToolCandidate) -> None:
        """Add the tools of candidates that were made by hand."""
        self.engine.register(*(candidate.tool for candidate in candidates))

    def find_by_name(self, name: str, action: str | None = None) -> list[ToolCandidate]:
        return list(self._current_index().by_name(name, action).candidates)

    def find_by_capability(self, tag: str, *, replacing: ToolCandidate | None = None) -> list[ToolCandidate]:
        """Return the tools with a tag; with `replacing`, only the tools that can do the same as this candidate."""
        candidates = list(self._current_index().by_tag(tag).candidates)
        return candidates if replacing is None else find_similar(replacing, candidates, tag)

    def _try_map_arguments(self, candidate: ToolCandidate, params: Any) -> Any:
        try:
            return self._map_arguments(candidate, params)
        except InvalidArguments:
            return params  # the engine reports everything that is wrong with them

    # Several candidates

    def _select_candidates(self, request: HubRequest, candidates: Sequence[ToolCandidate]) -> list[ToolCandidate]:
        """Return the candidates that the caller may call. Candidates that need an approval are tried last."""
        permissions = self._permissions_of(request)
        by_verdict: dict[str, list[ToolCandidate]] = {"allow": [], "ask": [], "deny": []}
        for candidate in candidates:
            by_verdict[permissions.decide(candidate.tool, candidate.capability).verdict].append(candidate)
        # The reason names the actions of the tool.
        request.skipped = [s for s in request.skipped if permissions.permitted_spec(s.tool) is s.tool.spec]
        request.tools_needing_approval = frozenset(candidate.tool for candidate in by_verdict["ask"])
        request.candidate_tools = frozenset(candidate.tool for candidate in candidates)
        permitted = [*by_verdict["allow"], *by_verdict["ask"]]
        if self.config.destructive_fallback or not any(candidate.effects.read_only for candidate in permitted):
            return permitted
        for candidate in (each for each in permitted if each.effects.destructive):
            request.skip(candidate, "It is destructive, and a read-only tool can do the job.")
        return [candidate for candidate in permitted if not candidate.effects.destructive]

    def _permissions_of(self, request: HubRequest) -> Permissions:
        context = request.context or ToolExecutionContext()
        return self.engine.permissions(context.principal, context.policy)

    async def _call_several(self, request: HubRequest, candidates: Sequence[ToolCandidate]) -> ToolExecutionResult:
        if len(candidates) == 1 and request.tag is None:
            params = self._try_map_arguments(candidates[0], request.params)
            only = await self._call_candidate(request, CandidateCall(candidate=candidates[0], params=params))
            return request.finish(only.result, only.candidate)
        calls = self._prepare_calls(request, self._order_candidates(request, candidates))
        if not calls:
            return self._reject(request, request.failed_result(), InvalidArguments)
        if (approved := await self._find_approved_call(request, calls)) is not None:
            return await self._try_in_order(request, [approved, *(call for call in calls if call is not approved)])
        strategy = strategy_of_candidates([call.candidate for call in calls], request.tag, self.config.strategy)
        concurrent, remaining = self._split_calls(request, calls, strategy)
        result = None
        if concurrent and strategy == "synthesize":
            result = await self._combine_answers(request, concurrent)
        elif concurrent:
            call = partial(self._call_candidate, request)
            winner = await race(concurrent, call, self._latencies, self._budget, together=strategy == "race")
            result = None if winner is None else self._finish_with_success(request, winner)
        return result if result is not None else await self._try_in_order(request, remaining)

    def _order_candidates(self, request: HubRequest, candidates: Sequence[ToolCandidate]) -> list[ToolCandidate]:
        """Return the last to succeed first, then by source; equals in random order, so that load spreads."""
        ordered = list(candidates)
        self._random.shuffle(ordered)
        last = self._last_success.get(request.key)
        return sorted(
            ordered, key=lambda c: (c.tool in request.tools_needing_approval, (c.source, c.name) != last, c.priority)
        )

    async def _find_approved_call(self, request: HubRequest, calls: Sequence[CandidateCall]) -> CandidateCall | None:
        """Return the call that a person has approved, perhaps with other arguments: it is made before any other."""
        if request.context is None or request.context.approval_id is None:
            return None
        try:
            approval = await self.engine.approvals.get(request.context.approval_id)
        except FerruleError:  # there is none, or it cannot be read, which the engine reports
            return None
        fingerprint = approval.fingerprint if approval.state == "approved" else None
        return next((call for call in calls if call.candidate.tool.fingerprint == fingerprint), None)

    def _prepare_calls(self, request: HubRequest, candidates: Sequence[ToolCandidate]) -> list[CandidateCall]:
        """Return the calls of the candidates that accept the arguments, and skip the others."""
        calls = []
        for candidate in candidates:
            try:
                params = self._map_arguments(candidate, request.params)
            except InvalidArguments as error:
                request.skip(candidate, str(error))
                continue
            replaced = request.replacing and request.replacing.capability.schema_or_empty
            needed = (replaced or {}).get("required") or ()
            if request.tag is not None and not accepts_arguments(candidate, request.params, params, needed):
                request.skip(candidate, "It has no parameters for the arguments.")
                continue
            calls.append(CandidateCall(candidate=candidate, params=params))
        return calls

    def _split_calls(
        self, request: HubRequest, calls: list[CandidateCall], strategy: HubStrategy
    ) -> tuple[list[CandidateCall], list[CandidateCall]]:
        """Return the calls that run concurrently, and the calls that are made in order if none of them succeeds."""
        harmless = (c for c in calls if c.candidate.may_race and c.candidate.tool not in request.tools_needing_approval)
        concurrent = list(islice(harmless, self.config.max_parallel))
        if len(concurrent) < 2 or (strategy != "synthesize" and calls[0] not in concurrent):
            return [], calls
        return concurrent, [call for call in calls if call not in concurrent]

    async def _combine_answers(self, request: HubRequest, calls: list[CandidateCall]) -> ToolExecutionResult | None:
        results, stopped = await gather_results(
            calls, partial(self._call_candidate, request), self.config.gather_timeout
        )
        for call in stopped:
            request.skip(call.candidate, "It was stopped, because it took much longer than others that answered.")
        answers = [result for result in results if result.is_answer]
        if len(answers) < 2:
            return self._finish_with_success(request, answers[0]) if answers else None
        self._remember_success(request, answers[0])
        pages = merge_page_lists([answer.result.output for answer in answers])
        if pages is not None:
            return request.combine_answers(answers, pages, "lists")
        text, synthesis = await synthesize(request, answers, self._model_for(request), self.config.synthesis_timeout)
        return request.combine_answers(answers, {"result": text}, synthesis)

    async def _try_in_order(self, request: HubRequest, calls: list[CandidateCall]) -> ToolExecutionResult:
        for position, call in enumerate(calls):
            # A success, though empty, may have had an effect, which must not happen twice.
            may_follow = call.candidate.effects.repeatable
            successes = [each for each in request.ended_calls if each.result.is_success]
            blocking = [each for each in successes if not (may_follow and each.candidate.effects.read_only)]
            if blocking:
                request.skip(call.candidate, f"{blocking[0].candidate.label} has succeeded already.")
                continue
            result = await self._call_candidate(request, call)
            if result.is_answer:
                return self._finish_with_success(request, result)
            if (reason := _find_reason_to_stop(result)) is not None:
                for other in calls[position + 1 :]:
                    request.skip(other.candidate, f"{result.candidate.label} {reason}")
                return request.finish(result.result, result.candidate)
        success = next((each for each in request.ended_calls if each.result.is_success), None)
        return request.failed_result() if success is None else self._finish_with_success(request, success)

    # Parts of the steps

    def _reject(self, request: HubRequest, result: ToolExecutionResult, kind: type[CallError]) -> ToolExecutionResult:
        """Record a request for which no candidate was called, and return its result."""
        error, names = kind(result.error or ""), (request.name, request.action)
        result.call_id = self.engine.reject(error, *names, request.params, request.context, request.candidate_tools)
        return result

    async def _call_candidate(self, request: HubRequest, call: CandidateCall) -> CandidateCall:
        candidate, context = call.candidate, request.context
        if context is not None and context.approval_id is not None and len(request.candidate_tools) > 1:
            is_for_candidate = await self.engine.is_approval_of(context.approval_id, candidate.tool)
            context = context if is_for_candidate else replace(context, approval_id=None)
        result = await self.engine.execute_candidate(
            candidate.tool,
            candidate.capability.name,
            call.params,
            context,
            timeout=request.timeout,
            on_progress=request.on_progress,
        )
        if result.is_success:
            self._latencies.add(candidate, result)
        call.result = result
        request.ended_calls.append(call)
        return call

    def _map_arguments(self, candidate: ToolCandidate, params: Any) -> Any:
        validate = partial(self.engine.check, candidate.tool, action=candidate.capability.name)
        return map_arguments(candidate.capability, params, validate)

    def _model_for(self, request: HubRequest) -> Model | Synthesizer | None:
        """Return the model that combines answers: the caller's, or else the hub's."""
        own = request.context.model if request.context is not None else None
        model = self.model if own is None else own
        if not self.config.use_model or model is None or not (callable(model) or can_reason(model)):
            return None
        return model

    def _finish_with_success(self, request: HubRequest, result: CandidateCall) -> ToolExecutionResult:
        self._remember_success(request, result)
        return request.finish(result.result, result.candidate)

    def _remember_success(self, request: HubRequest, result: CandidateCall) -> None:
        self._last_success[request.key] = (result.candidate.source, result.candidate.name)

    def _current_index(self) -> CandidateIndex:
        registry = self.engine.registry
        if self._index is None or self._index_version != registry.version:
            snapshot = registry.snapshot()
            self._index, self._index_version = CandidateIndex(snapshot), snapshot.version
        return self._index


def _find_reason_to_stop(result: CandidateCall) -> str | None:
    """Return why the next candidate must not be called after this failure; None when it may be called."""
    if result.result.may_have_taken_effect(result.candidate.effects):
        return "failed, but may already have taken effect."
    if result.result.metadata.get("arguments_edited"):
        return "was called with arguments that a person has changed."  # the others would get the original ones
    if result.result.metadata.get("refused"):
        return "was refused by a person."  # the person refused the effect, whichever tool would cause it
    if result.needs_approval and not result.candidate.effects.repeatable:
        return "waits for a person's approval."  # no other candidate may do meanwhile what was not approved
    return None


def _copy_params(params: Mapping[str, Any] | str | None) -> Any:
    """Copy the arguments as a dictionary. Anything else stays unchanged, for validation to report it."""
    try:
        return dict(params) if isinstance(params, Mapping) else {} if params is None else params
    except Exception:  # a mapping of the caller's own that fails
        return params
