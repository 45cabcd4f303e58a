"""Never twice: what keeps a run from making a call that is known to fail.

The engine asks before each call and tells after it (see `ferrule.call.CallMemory`). A failed call is known to fail
until something happens that may have changed that: a successful call that is not read-only, of the same tool or one
that speaks of the same thing. A transient failure has its tries, then rests. Polling is exempt, and so is what a
person asks to be tried again. A tool that changes has another fingerprint and starts clean.

A value that was not found counts beyond the one call: a selector that matched nothing matches nothing for any
other action on the same page either.

Successful calls are watched too: a read-only call that gave the same answer three times, with nothing changed
between, is answered from the record for a while.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ferrule.call import ToolExecutionResult
from ferrule.content import Output, as_text
from ferrule.errors import CANCELLED, KNOWN_FAILURE, REJECTED, KnownFailure
from ferrule.memory.failure import MENTIONED, Failure, host_of, missing_value, texts_in, without_secrets
from ferrule.memory.failure_class import FailureClass, FailureClassifier
from ferrule.memory.identity import CallIdentity, digest, identify, same_text
from ferrule.memory.parameters import ADDRESSES, LOCATORS
from ferrule.spec import Effects, Tool, ToolCapability

REMEMBERED: Final = 1_000
"""Failures, and answers, the oldest of which are forgotten first."""
REOPENINGS: Final = 3
"""A call that failed so often is not tried again for a change that did not help it before."""
SAME_ANSWERS: Final = 3
FRESH: Final = 30.0
"""Seconds an answer from the record stands for the world."""
SHOWN: Final = 300

_GOES = frozenset({"url", "uri", "page", "tab", "site"})
"""Parameters of changes that lead to another page, where what was missing may be."""
# Read-only tools whose answer changes by itself, whatever their specs forget to say.
_MOVES = re.compile(
    r"(^|[_\W])(poll|status|state|progress|wait|watch|tail|ping|health|now|time|date|random|uuid|next|sleep|check)"
    r"([_\W]|$)|状态|进度|时间|随机",
    re.IGNORECASE,
)


class Adviser(Protocol):
    """Says what could be tried instead of a call that failed."""

    def __call__(self, tool: Tool, capability: ToolCapability, failure: Failure, /) -> list[str]: ...


class FailureListener(Protocol):
    """Is told what failed, and what cured it."""

    def failed(self, tool: Tool, failure: Failure, /) -> None: ...

    def cured(self, tool: Tool, failure: Failure, parameters: Mapping[str, Any], /) -> None: ...


@dataclass(slots=True)
class _Answers:
    """How often a read-only call gave the same answer."""

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
        adviser: Adviser | None = None,
        listener: FailureListener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.classifier = classifier or FailureClassifier()
        self._adviser, self._listener, self._clock = adviser, listener, clock
        self._failures: OrderedDict[Any, Failure] = OrderedDict()
        self._missing: dict[Any, Failure] = {}
        """By tool, parameter and value."""
        self._answers: OrderedDict[Any, _Answers] = OrderedDict()
        self._worked: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """By tool and action: the arguments of the last calls that succeeded after a failure."""
        self._uncured: dict[tuple[str, str], Failure] = {}
        self._hosts: dict[tuple[str, str, str], str] = {}
        """By tool: where its last change took it."""

    @property
    def failures(self) -> list[Failure]:
        """What failed in this run and has not succeeded since, oldest first."""
        return list(self._failures.values())

    # Asked before a call, told after it

    def recall(self, tool: Tool, capability: ToolCapability, params: dict[str, Any]) -> Output | None:
        effects = tool.spec.effects_of(capability)
        if effects.polling or not (self._failures or self._answers):
            return None
        failure = self.known_failure(tool, capability, params) if self._failures else None
        if failure is not None:
            failure.asked_again, failure.asked_at = failure.asked_again + 1, self._clock()
            raise self._known_failure(tool, capability, failure)
        return self._same_again(identify(tool, capability, params)) if self._answers else None

    def known_failure(self, tool: Tool, capability: ToolCapability, params: Mapping[str, Any]) -> Failure | None:
        """The failure that says that a call would fail now."""
        identity = identify(tool, capability, params)
        failure = self._failures.get(identity.key)
        if failure is not None and self._holds(failure, identity):
            return failure
        return self._known_missing(identity, tool.spec.effects_of(capability), params) if self._missing else None

    def learn(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult
    ) -> None:
        if result.error_type in (CANCELLED, KNOWN_FAILURE) or result.metadata.get("recalled"):
            return
        effects = tool.spec.effects_of(capability)
        if result.is_success:
            self._succeeded(tool, capability, effects, params, result)
        else:
            self._failed(tool, capability, effects, params, result)

    def relearn(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult
    ) -> None:
        """Learn again what the run knew before it was interrupted: nobody else is told, and no answer is fresh."""
        listener, self._listener = self._listener, None
        try:
            self.learn(tool, capability, params, result)
        finally:
            self._listener = listener
            self._answers.clear()

    def forgive(self, tool_id: str | None = None) -> int:
        """Forget what failed, of one tool or of all, so that it may be tried again; returns how many failures."""
        gone = [key for key, failure in self._failures.items() if tool_id in (None, failure.tool_id)]
        for key in gone:
            self._forget(key)
        return len(gone)

    # Failures

    def _failed(
        self,
        tool: Tool,
        capability: ToolCapability,
        effects: Effects,
        params: dict[str, Any],
        result: ToolExecutionResult,
    ) -> None:
        failure_class = self._class_of(result, effects)
        result.metadata["failure_class"] = failure_class.value
        # One that was not let in was not made; one that waits for a person's word is nobody's mistake.
        if effects.polling or result.error_type == REJECTED or result.metadata.get("advice") == "ask_approval":
            return
        identity, error = identify(tool, capability, params), result.error or result.error_type or "failed"
        if secret_names := capability.secret_names:
            error = without_secrets(error, params, secret_names)
        failure = self._failures.get(identity.key)
        if failure is None:
            failure = Failure(
                identity=identity,
                tool_id=tool.id,
                action=capability.name,
                parameters={name: v for name, v in params.items() if name not in capability.secret_names},
                error=error,
                failure_class=failure_class,
                last_at=self._clock(),
                host=host_of(params) or self._hosts.get(identity.tool, ""),
            )
            self._failures[identity.key] = failure
            if len(self._failures) > REMEMBERED:
                self._forget(next(iter(self._failures)))
        else:
            failure.count += 1
            failure.error, failure.failure_class = error, failure_class
            failure.identity = identity if identity.timing > failure.identity.timing else failure.identity
            failure.reopened, failure.last_at = False, self._clock()
        self._no_longer_missing(failure)
        if failure_class is FailureClass.NOT_FOUND and (value := missing_value(failure.parameters, error)) is not None:
            failure.value = value
            self._missing[(*identity.tool, *value)] = failure
        self._uncured[tool.id, capability.name] = failure
        if self._listener is not None:
            self._listener.failed(tool, failure)
        if self._adviser is not None and (instead := self._adviser(tool, capability, failure)):
            result.metadata["instead"] = instead

    def _class_of(self, result: ToolExecutionResult, effects: Effects) -> FailureClass:
        if effects.repeatable and "outcome" in result.metadata:  # whether it has happened does not matter then
            facts = {name: value for name, value in result.metadata.items() if name != "outcome"}
            return self.classifier.classify(replace(result, metadata=facts))
        return self.classifier.classify(result)

    def _holds(self, failure: Failure, identity: CallIdentity) -> bool:
        """Whether a call that failed would fail now."""
        if failure.reopened or not failure.speaks_of(identity):
            return False
        policy = self.classifier.policy(failure.failure_class)
        tries = failure.count - policy.executions
        if tries < 0:
            return False
        return policy.rest is None or self._clock() < failure.last_at + policy.rest * 2**tries

    def _known_missing(self, identity: CallIdentity, effects: Effects, params: Mapping[str, Any]) -> Failure | None:
        """The failure that says that one of the values of a call is not there."""
        for name, value in params.items():
            if not isinstance(value, str):
                continue
            failure = self._missing.get((*identity.tool, name, same_text(value)))
            if failure is None or not self._holds(failure, identity):
                continue
            # What only points at something cannot make it; anything else may be about to. An id may be that of
            # another kind of thing in another action, a file or an address is the same in all of them.
            only_looks = name in LOCATORS or (effects.read_only and name in ADDRESSES)
            if only_looks and failure.in_the_same_place(params, name):
                return failure
        return None

    def _known_failure(self, tool: Tool, capability: ToolCapability, failure: Failure) -> KnownFailure:
        policy = self.classifier.policy(failure.failure_class)
        times = "once" if failure.count == 1 else f"{failure.count} times"
        said = [f"This call of {tool.id!r} failed {times} before and was not made again: {_short(failure.error)}"]
        if failure.asked_again > 1:
            said.append(f"It has been asked for {failure.asked_again} more times since.")
        said.append(policy.advice)
        worked = self._worked.get((tool.id, capability.name), [])
        said += [f"What has worked: {_short(as_text(params))}" for params in worked[-2:]]
        instead = self._adviser(tool, capability, failure) if self._adviser is not None else []
        if instead:
            said.append("Try instead: " + "; ".join(instead) + ".")
        return KnownFailure(
            " ".join(said),
            failure_class=failure.failure_class.value,
            remedy=policy.remedy,
            failures=failure.count,
            asked_again=failure.asked_again,
            worked=worked[-2:],
            instead=instead,
        )

    def _forget(self, key: Any) -> None:
        self._no_longer_missing(self._failures.pop(key))

    def _no_longer_missing(self, failure: Failure) -> None:
        if failure.value is not None:
            self._missing.pop((*failure.identity.tool, *failure.value), None)
            failure.value = None

    # Successes

    def _succeeded(
        self,
        tool: Tool,
        capability: ToolCapability,
        effects: Effects,
        params: dict[str, Any],
        result: ToolExecutionResult,
    ) -> None:
        identity = identify(tool, capability, params)
        if self._failures:
            self._cure(tool, capability, identity, params)
        if self._missing:
            self._found(identity, params, result)
        if not effects.read_only:
            self._changed(identity, params, result.executed_at.timestamp())
        elif not effects.polling and not _MOVES.search(f"{tool.id} {capability.name}"):
            self._answered(identity, result)

    def _cure(self, tool: Tool, capability: ToolCapability, identity: CallIdentity, params: Mapping[str, Any]) -> None:
        if identity.key in self._failures:
            self._forget(identity.key)
        failure = self._uncured.pop((tool.id, capability.name), None)
        if failure is None or failure.identity.key == identity.key:
            return
        shown = {name: value for name, value in params.items() if name not in capability.secret_names}
        worked = self._worked.setdefault((tool.id, capability.name), [])
        worked.append(shown)
        del worked[:-5]
        if self._listener is not None:
            self._listener.cured(tool, failure, shown)

    def _changed(self, identity: CallIdentity, params: Mapping[str, Any], began: float) -> None:
        """Something may be different now: what failed may be tried again, what was answered asked again."""
        self._answers.clear()
        if host := host_of(params):
            self._hosts[identity.tool] = host
        said = texts_in(params)
        goes_elsewhere = not _GOES.isdisjoint(params)
        for failure in self._failures.values():
            if failure.reopened:
                continue
            is_elsewhere_now = goes_elsewhere and failure.value is not None and failure.value[0] in LOCATORS
            if failure.identity.tool == identity.tool or is_elsewhere_now or failure.is_mentioned_in(said):
                failure.reopened = failure.count < REOPENINGS or identity.key not in failure.openers
                failure.openers.add(identity.key)
            elif began >= max(failure.last_at, failure.asked_at) and failure.may_depend_on(params):
                # Once for each kind of change.
                failure.reopened = failure.count < REOPENINGS and identity.key[:4] not in failure.openers
                failure.openers.add(identity.key[:4])

    def _found(self, identity: CallIdentity, params: Mapping[str, Any], result: ToolExecutionResult) -> None:
        """What was missing may be there now: a call that names it has succeeded, or one has shown it."""
        for name, value in params.items():
            if isinstance(value, str) and (failure := self._missing.get((*identity.tool, name, same_text(value)))):
                failure.reopened = True
        shown = ""
        for failure in self._missing.values():
            if failure.reopened or failure.value is None or failure.count >= REOPENINGS:
                continue
            shown = shown or as_text(result.output)
            failure.reopened = len(failure.value[1]) >= MENTIONED and failure.value[1] in shown

    def _answered(self, identity: CallIdentity, result: ToolExecutionResult) -> None:
        answer, now = digest(result.output), self._clock()
        known = self._answers.get(identity.key)
        if known is None or known.digest != answer:
            self._answers[identity.key] = _Answers(answer, 1, now, None)
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
            return
        known.count, known.at = known.count + 1, now
        if known.count >= SAME_ANSWERS:
            known.output = Output(data=result.output, parts=result.content)
            result.metadata["note"] = (
                f"This call has now given the same answer {known.count} times and nothing has changed in between. "
                "Use the answer, or do something else."
            )

    def _same_again(self, identity: CallIdentity) -> Output | None:
        known = self._answers.get(identity.key)
        if known is None or known.output is None or self._clock() > known.at + FRESH:
            return None
        known.count += 1
        return known.output


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1].rstrip() + "…"
