"""Failed calls: their classes, and whether a failure still applies to a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from ferrule.core.call import ToolExecutionResult
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import EXECUTOR_NOT_FOUND, PERMISSION_DENIED, REJECTED, TIMEOUT, TOOL_NOT_FOUND, VALIDATION_ERROR
from ferrule.memory.call_identity import LOCATORS, CallIdentity, is_location, normalize_whitespace

# ---- classes of failures, and what may be done about each

Remedy: TypeAlias = Literal["repair", "retry_later", "ask", "variant", "never"]


class FailureClass(StrEnum):
    """Why a call failed, as far as it matters for what to do next."""

    VALIDATION = "validation"
    TRANSIENT = "transient"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


FailureRule: TypeAlias = Callable[[ToolExecutionResult], FailureClass | None]
"""Classifies a failure; None leaves it to the next rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What may be done about a class of failures."""

    remedy: Remedy
    executions: int = 1
    """How often the same call may be made before it counts as known to fail."""
    rest: float | None = None
    """Seconds after which one more retry is allowed, doubled each time; None: not in this run."""
    advice: str
    """The sentence shown to the model."""


POLICIES: Final[Mapping[FailureClass, FailurePolicy]] = MappingProxyType(
    {
        FailureClass.VALIDATION: FailurePolicy(
            remedy="repair", advice="Correct the arguments; the same ones fail again."
        ),
        FailureClass.TRANSIENT: FailurePolicy(
            remedy="retry_later", executions=3, rest=30.0, advice="It may work later; do something else meanwhile."
        ),
        FailureClass.AUTH: FailurePolicy(remedy="ask", advice="It is not permitted: ask the user, or do without it."),
        FailureClass.NOT_FOUND: FailurePolicy(
            remedy="variant", advice="What it asks for does not exist: look at what exists and ask for that."
        ),
        FailureClass.PERMANENT: FailurePolicy(remedy="never", advice="It cannot work: try a different approach."),
        FailureClass.UNKNOWN: FailurePolicy(
            remedy="variant", advice="Change the arguments, or use another tool; the same call fails again."
        ),
    }
)


class FailureClassifier:
    """Classifies failures: by your rules first, then by error type, metadata and message."""

    def __init__(self, *rules: FailureRule, policies: Mapping[FailureClass, FailurePolicy] = POLICIES) -> None:
        self._rules, self._policies = rules, policies

    def classify(self, result: ToolExecutionResult) -> FailureClass:
        classes = (rule(result) for rule in (*self._rules, _classify_by_metadata, _classify_by_message))
        return next((each for each in classes if each is not None), FailureClass.UNKNOWN)

    def policy(self, failure_class: FailureClass) -> FailurePolicy:
        return self._policies.get(failure_class) or POLICIES[failure_class]


def _classify_by_metadata(result: ToolExecutionResult) -> FailureClass | None:
    """Classify by the exception that the tool raised on purpose, the error type, or the HTTP status."""
    if result.metadata.get("outcome") == "unknown":  # the effect may have happened: a second call could repeat it
        return FailureClass.UNKNOWN
    by_advice, by_type = _BY_ADVICE.get(str(result.metadata.get("advice"))), _BY_TYPE.get(result.error_type or "")
    if by_advice or by_type:
        return by_advice or by_type
    status = result.metadata.get("status_code", result.metadata.get("status"))
    if not isinstance(status, int) or isinstance(status, bool):
        return None
    return _BY_STATUS.get(status) or (FailureClass.TRANSIENT if status >= 500 else None)


def _classify_by_message(result: ToolExecutionResult) -> FailureClass | None:
    error = (result.error or "")[:MAX_ERROR_LENGTH]
    by_message = next((failure_class for failure_class, pattern in _MESSAGES if pattern.search(error)), None)
    return by_message or (FailureClass.TRANSIENT if result.metadata.get("transient") else None)


MAX_ERROR_LENGTH: Final = 4_000
"""Characters of a message that are searched."""

_BY_ADVICE: Final = {
    "change_arguments": FailureClass.VALIDATION,
    "give_up": FailureClass.PERMANENT,
    "ask_approval": FailureClass.AUTH,
    "try_later": FailureClass.TRANSIENT,
}
_BY_TYPE: Final = {
    TIMEOUT: FailureClass.TRANSIENT,
    VALIDATION_ERROR: FailureClass.VALIDATION,
    REJECTED: FailureClass.TRANSIENT,
    PERMISSION_DENIED: FailureClass.AUTH,
    TOOL_NOT_FOUND: FailureClass.PERMANENT,
    EXECUTOR_NOT_FOUND: FailureClass.PERMANENT,
}
_BY_STATUS: Final = {
    400: FailureClass.VALIDATION,
    401: FailureClass.AUTH,
    403: FailureClass.AUTH,
    404: FailureClass.NOT_FOUND,
    405: FailureClass.PERMANENT,
    407: FailureClass.AUTH,
    408: FailureClass.TRANSIENT,
    410: FailureClass.NOT_FOUND,
    422: FailureClass.VALIDATION,
    425: FailureClass.TRANSIENT,
    429: FailureClass.TRANSIENT,
    501: FailureClass.PERMANENT,
}


# The order matters: "Timeout 5000ms exceeded while waiting for selector" means that an element was not found, and
# "not found" beside "429" is still a rate limit.
_MESSAGES: Final = tuple(
    (failure_class, re.compile("|".join(patterns), re.IGNORECASE))
    for failure_class, *patterns in (
        (
            FailureClass.TRANSIENT,
            r"\b429\b",
            r"rate.?limit",
            r"too many requests",
            r"\bthrottl",
            r"not ready",
            r"still (running|pending|in progress)",
            r"请求过于频繁|限流|尚未(完成|就绪)",
        ),
        (
            FailureClass.NOT_FOUND,
            r"\bnot found\b",
            r"\bno such\b",
            r"\b(does not|doesn't|did not|didn't) exist\b",
            r"\b(cannot|can't|could not|couldn't|unable to) (find|locate)\b",
            r"\bno (element|elements|match|matches|matching|result|results|file|record|rows?)\b",
            r"\bwaiting for (selector|locator|element)\b",
            r"\b404\b",
            r"找不到|未找到|没有找到|不存在",
        ),
        (
            FailureClass.AUTH,
            r"\bunauthori[sz]ed\b",
            r"\bforbidden\b",
            r"\b(permission|access) denied\b",
            r"\bauthenticat",
            r"\b(invalid|missing|wrong|expired) (api[ _-]?key|token|credential|password)",
            r"\b(log|sign)[ -]?in (is )?(required|first)\b",
            r"\b40[13]\b",
            r"未授权|无权限|没有权限|权限不足|请先登录|认证失败",
        ),
        (
            FailureClass.TRANSIENT,
            r"\btim(ed|e)[ -]?out\b",
            r"\btemporar",
            r"\btry (it )?again (later|in )",
            r"\b(service|server|host|resource) (is )?(currently )?(unavailable|busy|overloaded)\b",
            r"\bconnection (was )?(reset|refused|aborted|closed|lost)\b",
            r"\b(name resolution|name or service not known|network is unreachable|econnreset|econnrefused|etimedout)\b",
            r"\b50[0234]\b",
            r"\b(database|file|table|resource) is locked\b",
            r"超时|稍后(再试|重试)|繁忙|暂时|连接(被重置|失败|中断)|网络(错误|异常)",
        ),
        (
            FailureClass.PERMANENT,
            r"\b(not|un)[ -]?(supported|implemented|allowed|available)\b",
            r"\bdivision by zero\b",
            r"\bsyntax ?error\b",
            r"\bread[ -]only\b",
            r"\balready exists\b",
            r"\bimpossible\b",
            r"不支持|不允许|已存在|未实现|只读",
        ),
        (
            FailureClass.VALIDATION,
            r"\binvalid (argument|parameter|value|input|format|url|date|json)",
            r"\b(is|are) (required|missing)\b",
            r"\bmissing (required )?(argument|parameter|field)",
            r"\bmust (be|have|not)\b",
            r"参数(错误|无效|缺失|不正确)|格式(错误|不正确)|必填",
        ),
    )
)
_MIN_VALUE_LENGTH: Final = 2
MIN_MENTION_LENGTH: Final = 3
"""A shorter text occurs in other texts by chance."""

_TIMEOUT_ERROR = lazy_pattern(r"time[ -]?d?[ -]?out|exceeded|超时", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class CallFailure:
    identity: CallIdentity
    tool_id: str
    action: str
    parameters: dict[str, Any]
    error: str
    failure_class: FailureClass
    last_at: float
    value: tuple[str, str] | None = None
    """The parameter and the value that were not found, if the error names them."""
    host: str = ""
    """The host it was about, if any."""
    count: int = 1
    """How often the call was made and failed."""
    refusals: int = 0
    """How often it was requested again and not made."""
    refused_at: float = 0.0
    """The last refusal; a change that began before it has not helped."""
    may_retry: bool = False
    """Something has changed since the failure."""
    retry_triggers: set[Any] = field(default_factory=set)
    """The calls after which it was retried."""
    _texts: list[str] | None = field(default=None, repr=False, compare=False)

    @property
    def is_timeout(self) -> bool:
        return self.failure_class is FailureClass.TRANSIENT or _TIMEOUT_ERROR.search(self.error) is not None

    def applies_to(self, identity: CallIdentity) -> bool:
        """Return whether a call with the same arguments fails too: after a timeout, a longer timeout may help."""
        return identity.timing <= self.identity.timing or not self.is_timeout

    def has_same_location(self, params: Mapping[str, Any], missing: str) -> bool:
        """Return whether another call looks for the parameter `missing` where this one did not find it."""
        return _location_parameters(self.parameters, missing) == _location_parameters(params, missing)

    def may_depend_on(self, params: Mapping[str, Any]) -> bool:
        """Return whether a side effect of another tool with these arguments may have removed the cause.

        Parameters that both calls have must be equal; otherwise it cannot be ruled out.
        """
        if self.failure_class in (FailureClass.VALIDATION, FailureClass.PERMANENT):
            return False
        return all(params[name] == value for name, value in self.parameters.items() if name in params)

    def is_mentioned_in(self, texts: Collection[str]) -> bool:
        """Return whether the texts of another call's arguments mention an argument of this one."""
        if self._texts is None:
            self._texts = [text for text in find_texts(self.parameters) if len(text) >= MIN_MENTION_LENGTH]
        return any(
            m in other or (len(other) >= MIN_MENTION_LENGTH and other in m) for other in texts for m in self._texts
        )


def find_host(params: Mapping[str, Any]) -> str:
    """Return the host of the first URL among the arguments; empty without one."""
    for value in params.values():
        if isinstance(value, str) and "://" in value[:12]:
            try:
                return urlsplit(value).hostname or ""
            except ValueError:
                continue
    return ""


def find_missing_value(params: Mapping[str, Any], error: str) -> tuple[str, str] | None:
    """Return the argument that an error names as not found: a locator first, else the longest."""
    mentioned = [
        (name, value)
        for name, value in params.items()
        if isinstance(value, str) and len(value) >= _MIN_VALUE_LENGTH and value in error
    ]
    if not mentioned:
        return None
    name, value = max(mentioned, key=lambda item: (item[0] in LOCATORS, len(item[1])))
    return name, normalize_whitespace(value)


def _location_parameters(params: Mapping[str, Any], missing: str) -> dict[str, Any]:
    return {n: value for n, value in params.items() if n != missing and value is not None and is_location(n)}


def find_texts(value: Any, depth: int = 0) -> list[str]:
    """Return the texts in arguments, up to five levels deep."""
    if isinstance(value, str):
        return [value]
    if depth > 4:
        return []
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in find_texts(inner, depth + 1)]
    if isinstance(value, list):
        return [text for inner in value for text in find_texts(inner, depth + 1)]
    return []
