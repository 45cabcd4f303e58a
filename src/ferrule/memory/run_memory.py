"""Never twice: keeps a run from making a call that is known to fail.

The engine asks before each call and reports after it (see `ferrule.core.call.CallMemory`). A failed call is known to
fail until something may have changed that: a successful call with side effects, by the same tool or with arguments
that mention the same thing. A transient failure may be retried a few times, then has to wait. Polling is exempt, and
so are calls that a person wants retried. A tool that changes gets a new fingerprint and starts without failures.

A value that was not found counts for more than one call: a selector that matched nothing matches nothing for any
other action on the same page either.

Successful calls are watched too: a read-only call that returned the same result three times, with no change in
between, is not made again for a while: its result comes from memory.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol

from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import Output, as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.core.secrets import Secrets
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import CANCELLED, KNOWN_FAILURE, REJECTED, KnownFailure
from ferrule.memory.call_identity import (
    ADDRESSES,
    LOCATORS,
    CallIdentity,
    digest_output,
    identify_call,
    normalize_whitespace,
)
from ferrule.memory.failures import (
    MIN_MENTION_LENGTH,
    CallFailure,
    FailureClass,
    FailureClassifier,
    find_host,
    find_missing_value,
    find_texts,
)
from ferrule.texts.shorten import cut, end_sentence

MAX_REMEMBERED: Final = 1_000
"""Failures, and results, per run; the oldest are forgotten first."""
MAX_RETRIES_AFTER_CHANGE: Final = 3
"""A call that failed this often is not retried after a change that did not help before."""
SAME_RESULTS_BEFORE_REUSE: Final = 3
REUSE_SECONDS: Final = 30.0
"""How long a repeated result is reused."""
MAX_QUOTE_LENGTH: Final = 300

_NAVIGATION_PARAMETERS = frozenset({"url", "uri", "page", "tab", "site"})
"""A call with one of these may lead to another page, where a missing element may exist."""
# Names of read-only tools whose result changes by itself, in case their specs do not declare `polling`.
VOLATILE_NAME = lazy_pattern(
    r"(^|[_\W])(poll|status|state|progress|wait|watch|tail|ping|health|now|time|date|random|uuid|next|sleep|check)"
    r"([_\W]|$)|状态|进度|时间|随机",
    re.IGNORECASE,
)


class AlternativeSuggester(Protocol):
    """Suggests what could be tried instead of a call that failed."""

    def __call__(self, tool: Tool, capability: ToolCapability, failure: CallFailure, /) -> list[str]: ...


class FailureListener(Protocol):
    """Receives what failed, what was not made again, and the arguments that worked afterwards."""

    def on_failure(self, tool: Tool, failure: CallFailure, /) -> None: ...

    def on_refusal(self, tool: Tool, failure: CallFailure, /) -> None: ...

    def on_recovery(self, tool: Tool, failure: CallFailure, parameters: Mapping[str, Any], /) -> None: ...


@dataclass(slots=True)
class _RepeatedResult:
    """How often a read-only call returned the same result."""

    digest: int
    count: int
    at: float
    output: Output | None


class RunMemory:
    """What one run remembers of its calls."""

    def __init__(
        self,
        *,
        classifier: FailureClassifier | None = None,
        suggest: AlternativeSuggester | None = None,
        listener: FailureListener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.classifier = classifier or FailureClassifier()
        self._suggest, self._listener, self._clock = suggest, listener, clock
        self._failures: OrderedDict[Any, CallFailure] = OrderedDict()
        self._missing: dict[Any, CallFailure] = {}
        """By tool, parameter and value."""
        self._results: OrderedDict[Any, _RepeatedResult] = OrderedDict()
        self._working_arguments: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """By tool and action: the arguments of the last calls that succeeded after a failure."""
        self._last_failure: dict[tuple[str, str], CallFailure] = {}
        """By tool and action, until a call of it succeeds."""
        self._hosts: dict[tuple[str, str, str], str] = {}
        """By tool: the host of its last call with side effects."""

    @property
    def failures(self) -> list[CallFailure]:
        """Return the calls that failed in this run and have not succeeded since, oldest first."""
        return list(self._failures.values())

    # Before and after a call

    def find_result(self, tool: Tool, capability: ToolCapability, params: dict[str, Any]) -> Output | None:
        effects = tool.spec.effects_of(capability)
        if effects.polling or not (self._failures or self._results):
            return None
        failure = self.known_failure(tool, capability, params) if self._failures else None
        if failure is not None:
            failure.refusals, failure.refused_at = failure.refusals + 1, self._clock()
            if self._listener is not None:
                self._listener.on_refusal(tool, failure)
            raise self._make_known_failure(tool, capability, failure)
        results = self._results.get(identify_call(tool, capability, params).key) if self._results else None
        if results is None or results.output is None or self._clock() > results.at + REUSE_SECONDS:
            return None
        results.count += 1
        return results.output

    def known_failure(self, tool: Tool, capability: ToolCapability, params: Mapping[str, Any]) -> CallFailure | None:
        """Return the failure by which a call is known to fail now."""
        identity = identify_call(tool, capability, params)
        failure = self._failures.get(identity.key)
        if failure is not None and self._still_fails(failure, identity):
            return failure
        return (
            self._missing_value_failure(identity, tool.spec.effects_of(capability), params) if self._missing else None
        )

    def record_result(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult
    ) -> None:
        if result.error_type in (CANCELLED, KNOWN_FAILURE) or result.metadata.get("recalled"):
            return
        effects = tool.spec.effects_of(capability)
        if result.is_success:
            self._learn_success(tool, capability, effects, params, result)
        else:
            self._learn_failure(tool, capability, effects, params, result)

    def restore_call(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult
    ) -> None:
        """Restore what the run knew before it was interrupted: listeners are not called, and results are not reused."""
        listener, self._listener = self._listener, None
        try:
            self.record_result(tool, capability, params, result)
        finally:
            self._listener = listener
            self._results.clear()

    def clear_failures(self, tool_id: str | None = None) -> int:
        """Forget the failures of one tool, or of all, so that the calls may be retried; returns how many."""
        keys = [key for key, failure in self._failures.items() if tool_id in (None, failure.tool_id)]
        for key in keys:
            self._forget_failure(key)
        return len(keys)

    # Failures

    def _learn_failure(
        self,
        tool: Tool,
        capability: ToolCapability,
        effects: Effects,
        params: dict[str, Any],
        result: ToolExecutionResult,
    ) -> None:
        classified = result
        if effects.repeatable and "outcome" in result.metadata:
            # A repeatable call may be made again even if the first one had its effect.
            facts = {name: value for name, value in result.metadata.items() if name != "outcome"}
            classified = replace(result, metadata=facts)
        failure_class = self.classifier.classify(classified)
        result.metadata["failure_class"] = failure_class.value
        # A rejected call was never made, and a call that waits for approval has not failed.
        if effects.polling or result.error_type == REJECTED or result.metadata.get("advice") == "ask_approval":
            return
        identity, error = identify_call(tool, capability, params), result.error or result.error_type or "failed"
        if secret_names := capability.secret_names:
            error = Secrets.from_params(params, secret_names).hide(error)
        failure = self._failures.get(identity.key)
        if failure is None:
            failure = CallFailure(
                identity=identity,
                tool_id=tool.id,
                action=capability.name,
                parameters={name: v for name, v in params.items() if name not in capability.secret_names},
                error=error,
                failure_class=failure_class,
                last_at=self._clock(),
                host=find_host(params) or self._hosts.get(identity.tool, ""),
            )
            self._failures[identity.key] = failure
            if len(self._failures) > MAX_REMEMBERED:
                self._forget_failure(next(iter(self._failures)))
        else:
            failure.count += 1
            failure.error, failure.failure_class = error, failure_class
            failure.identity = identity if identity.timing > failure.identity.timing else failure.identity
            failure.may_retry, failure.last_at = False, self._clock()
        self._clear_missing_value(failure)
        if (
            failure_class is FailureClass.NOT_FOUND
            and (value := find_missing_value(failure.parameters, error)) is not None
        ):
            failure.value = value
            self._missing[(*identity.tool, *value)] = failure
        self._last_failure[tool.id, capability.name] = failure
        if self._listener is not None:
            self._listener.on_failure(tool, failure)
        if self._suggest is not None and (instead := self._suggest(tool, capability, failure)):
            result.metadata["instead"] = instead

    def _still_fails(self, failure: CallFailure, identity: CallIdentity) -> bool:
        """Return whether a call that failed is still expected to fail."""
        if failure.may_retry or not failure.applies_to(identity):
            return False
        policy = self.classifier.policy(failure.failure_class)
        retries = failure.count - policy.executions
        if retries < 0:
            return False
        return policy.rest is None or self._clock() < failure.last_at + policy.rest * 2**retries

    def _missing_value_failure(
        self, identity: CallIdentity, effects: Effects, params: Mapping[str, Any]
    ) -> CallFailure | None:
        """Return the failure by which a value of this call is known to be missing."""
        for name, value in params.items():
            if not isinstance(value, str):
                continue
            failure = self._missing.get((*identity.tool, name, normalize_whitespace(value)))
            if failure is None or not self._still_fails(failure, identity):
                continue
            # A locator cannot create what it points at; another parameter may be about to. An id may belong to another
            # kind of object in another action, but a file or an address is the same in all of them.
            only_looks = name in LOCATORS or (effects.read_only and name in ADDRESSES)
            if only_looks and failure.has_same_location(params, name):
                return failure
        return None

    def _make_known_failure(self, tool: Tool, capability: ToolCapability, failure: CallFailure) -> KnownFailure:
        policy = self.classifier.policy(failure.failure_class)
        times = "once" if failure.count == 1 else f"{failure.count} times"
        error = end_sentence(cut(failure.error, MAX_QUOTE_LENGTH))
        message = [f"This call of {tool.id!r} failed {times} before and was not made again: {error}"]
        if failure.refusals > 1:
            message.append(f"It has been requested {failure.refusals} more times since.")
        message.append(policy.advice)
        working = self._working_arguments.get((tool.id, capability.name), [])[-2:]
        message += [f"Arguments that worked: {cut(as_text(params), MAX_QUOTE_LENGTH)}" for params in working]
        instead = self._suggest(tool, capability, failure) if self._suggest is not None else []
        if instead:
            message.append("Try instead: " + "; ".join(instead) + ".")
        return KnownFailure(
            " ".join(message),
            failure_class=failure.failure_class.value,
            remedy=policy.remedy,
            failures=failure.count,
            refusals=failure.refusals,
            worked=working,
            instead=instead,
        )

    def _forget_failure(self, key: Any) -> None:
        self._clear_missing_value(self._failures.pop(key))

    def _clear_missing_value(self, failure: CallFailure) -> None:
        if failure.value is not None:
            self._missing.pop((*failure.identity.tool, *failure.value), None)
            failure.value = None

    # Successes

    def _learn_success(
        self,
        tool: Tool,
        capability: ToolCapability,
        effects: Effects,
        params: dict[str, Any],
        result: ToolExecutionResult,
    ) -> None:
        if not effects.read_only:
            self._results.clear()  # after a side effect no result is reused
            if host := find_host(params):
                self._hosts[tool.source, tool.spec.tool_id, tool.spec.fingerprint] = host
            if not self._failures:  # nothing that the change could have made possible
                return
        identity = identify_call(tool, capability, params)
        if self._failures:
            self._learn_recovery(tool, capability, identity, params)
        if self._missing:
            self._allow_retries_of_missing(identity, params, result)
        if not effects.read_only:
            self._allow_retries_after_change(identity, params, result.executed_at.timestamp())
        elif "approval_id" in result.metadata:
            return  # it was approved for one call: the next one needs its own approval
        elif not effects.polling and not _has_volatile_name(tool.id, capability.name):
            self._count_result(identity, result)

    def _learn_recovery(
        self, tool: Tool, capability: ToolCapability, identity: CallIdentity, params: Mapping[str, Any]
    ) -> None:
        if identity.key in self._failures:
            self._forget_failure(identity.key)
        failure = self._last_failure.pop((tool.id, capability.name), None)
        if failure is None or failure.identity.key == identity.key:
            return
        arguments = {name: value for name, value in params.items() if name not in capability.secret_names}
        working = self._working_arguments.setdefault((tool.id, capability.name), [])
        working.append(arguments)
        del working[:-5]
        if self._listener is not None:
            self._listener.on_recovery(tool, failure, arguments)

    def _allow_retries_after_change(self, identity: CallIdentity, params: Mapping[str, Any], began: float) -> None:
        """Let failures that are related to a side effect be retried."""
        texts = find_texts(params)
        navigates = not _NAVIGATION_PARAMETERS.isdisjoint(params)
        for failure in self._failures.values():
            if failure.may_retry:
                continue
            is_on_other_page = navigates and failure.value is not None and failure.value[0] in LOCATORS
            if failure.identity.tool == identity.tool or is_on_other_page or failure.is_mentioned_in(texts):
                failure.may_retry = (
                    failure.count < MAX_RETRIES_AFTER_CHANGE or identity.key not in failure.retry_triggers
                )
                failure.retry_triggers.add(identity.key)
            elif began >= max(failure.last_at, failure.refused_at) and failure.may_depend_on(params):
                # Another tool may have removed the obstacle: one retry for each action that may have done so.
                action = identity.key[:4]
                failure.may_retry = failure.count < MAX_RETRIES_AFTER_CHANGE and action not in failure.retry_triggers
                failure.retry_triggers.add(action)

    def _allow_retries_of_missing(
        self, identity: CallIdentity, params: Mapping[str, Any], result: ToolExecutionResult
    ) -> None:
        """Let failures be retried whose value may exist now: a call with it has succeeded, or a result has it."""
        for name, value in params.items():
            if isinstance(value, str) and (
                failure := self._missing.get((*identity.tool, name, normalize_whitespace(value)))
            ):
                failure.may_retry = True
        output = ""
        for failure in self._missing.values():
            if failure.may_retry or failure.value is None or failure.count >= MAX_RETRIES_AFTER_CHANGE:
                continue
            output = output or as_text(result.output)
            failure.may_retry = len(failure.value[1]) >= MIN_MENTION_LENGTH and failure.value[1] in output

    def _count_result(self, identity: CallIdentity, result: ToolExecutionResult) -> None:
        output, now = digest_output(result.output), self._clock()
        results = self._results.get(identity.key)
        if results is None or results.digest != output:
            self._results[identity.key] = _RepeatedResult(output, 1, now, None)
            if len(self._results) > MAX_REMEMBERED:
                self._results.popitem(last=False)
            return
        results.count, results.at = results.count + 1, now
        if results.count >= SAME_RESULTS_BEFORE_REUSE:
            results.output = Output(data=result.output, parts=result.content)
            result.metadata["note"] = (
                f"This call has now returned the same result {results.count} times and nothing has changed in between. "
                "Use the result, or do something else."
            )


@lru_cache(maxsize=4096)
def _has_volatile_name(tool_id: str, action: str) -> bool:
    return VOLATILE_NAME.search(f"{tool_id} {action}") is not None
