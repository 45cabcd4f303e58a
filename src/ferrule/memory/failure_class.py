"""What kind of failure a result is, and what may be done about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from ferrule.call import ToolExecutionResult
from ferrule.errors import EXECUTOR_NOT_FOUND, PERMISSION_DENIED, REJECTED, TIMEOUT, TOOL_NOT_FOUND, VALIDATION_ERROR

Remedy: TypeAlias = Literal["repair", "retry_later", "ask", "variant", "never"]


class FailureClass(StrEnum):
    """Why a call failed, as far as that tells what to do next."""

    VALIDATION = "validation"
    TRANSIENT = "transient"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


FailureRule: TypeAlias = Callable[[ToolExecutionResult], FailureClass | None]
"""Says what a failure is; None means: not mine, keep looking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What may be done about a class of failures."""

    remedy: Remedy
    executions: int = 1
    """How often the same call may be made before it is known to fail."""
    rest: float | None = None
    """Seconds after which it may be tried once more, doubled each time; None = not in this run."""
    advice: str
    """The sentence a model is told."""


POLICIES: Final[Mapping[FailureClass, FailurePolicy]] = MappingProxyType(
    {
        FailureClass.VALIDATION: FailurePolicy(remedy="repair", advice="Mend the arguments; the same ones fail again."),
        FailureClass.TRANSIENT: FailurePolicy(
            remedy="retry_later", executions=3, rest=30.0, advice="It may work later; do something else meanwhile."
        ),
        FailureClass.AUTH: FailurePolicy(
            remedy="ask", advice="It is not allowed as it stands: ask the user, or do without it."
        ),
        FailureClass.NOT_FOUND: FailurePolicy(
            remedy="variant", advice="What it asks for is not there: look at what is there and ask for that."
        ),
        FailureClass.PERMANENT: FailurePolicy(remedy="never", advice="It cannot work: take another way."),
        FailureClass.UNKNOWN: FailurePolicy(
            remedy="variant", advice="Change the arguments, or use another tool; the same call fails again."
        ),
    }
)


class FailureClassifier:
    """Sorts failures: by rules of yours first, then by type, facts and words."""

    def __init__(self, *rules: FailureRule, policies: Mapping[FailureClass, FailurePolicy] = POLICIES) -> None:
        self._rules = (*rules, *_RULES)
        self._policies = policies

    def classify(self, result: ToolExecutionResult) -> FailureClass:
        for rule in self._rules:
            found = rule(result)
            if found is not None:
                return found
        return FailureClass.UNKNOWN

    def policy(self, failure_class: FailureClass) -> FailurePolicy:
        return self._policies.get(failure_class) or POLICIES[failure_class]


def by_advice(result: ToolExecutionResult) -> FailureClass | None:
    """What the tool itself said by the exception it raised."""
    if result.metadata.get("outcome") == "unknown":  # it may have happened: doing it again could do it twice
        return FailureClass.UNKNOWN
    return _BY_ADVICE.get(str(result.metadata.get("advice")))


def by_type(result: ToolExecutionResult) -> FailureClass | None:
    if result.error_type == TIMEOUT:
        return FailureClass.TRANSIENT
    return _BY_TYPE.get(result.error_type or "")


def by_status(result: ToolExecutionResult) -> FailureClass | None:
    """The status of an HTTP answer, where the tool tells it."""
    status = result.metadata.get("status_code", result.metadata.get("status"))
    if not isinstance(status, int) or isinstance(status, bool):
        return None
    return _BY_STATUS.get(status) or (FailureClass.TRANSIENT if status >= 500 else None)


def by_words(result: ToolExecutionResult) -> FailureClass | None:
    error = (result.error or "")[:READ]
    return next((found for found, pattern in _WORDS if pattern.search(error)), None)


def by_flag(result: ToolExecutionResult) -> FailureClass | None:
    return FailureClass.TRANSIENT if result.metadata.get("transient") else None


READ: Final = 4_000
"""Characters of a message that are looked at."""

_BY_ADVICE: Final = {
    "change_arguments": FailureClass.VALIDATION,
    "give_up": FailureClass.PERMANENT,
    "ask_approval": FailureClass.AUTH,
    "try_later": FailureClass.TRANSIENT,
}
_BY_TYPE: Final = {
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


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# In this order: "Timeout 5000ms exceeded while waiting for selector" is about what was not there, and "not found"
# beside "429" is still a limit.
_WORDS: Final = (
    (
        FailureClass.TRANSIENT,
        _words(
            r"\b429\b",
            r"rate.?limit",
            r"too many requests",
            r"\bthrottl",
            r"not ready",
            r"still (running|pending|in progress)",
            r"请求过于频繁|限流|尚未(完成|就绪)",
        ),
    ),
    (
        FailureClass.NOT_FOUND,
        _words(
            r"\bnot found\b",
            r"\bno such\b",
            r"\b(does not|doesn't|did not|didn't) exist\b",
            r"\b(cannot|can't|could not|couldn't|unable to) (find|locate)\b",
            r"\bno (element|elements|match|matches|matching|result|results|file|record|rows?)\b",
            r"\bwaiting for (selector|locator|element)\b",
            r"\b404\b",
            r"找不到|未找到|没有找到|不存在",
        ),
    ),
    (
        FailureClass.AUTH,
        _words(
            r"\bunauthori[sz]ed\b",
            r"\bforbidden\b",
            r"\b(permission|access) denied\b",
            r"\bauthenticat",
            r"\b(invalid|missing|wrong|expired) (api[ _-]?key|token|credential|password)",
            r"\b(log|sign)[ -]?in (is )?(required|first)\b",
            r"\b40[13]\b",
            r"未授权|无权限|没有权限|权限不足|请先登录|认证失败",
        ),
    ),
    (
        FailureClass.TRANSIENT,
        _words(
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
    ),
    (
        FailureClass.PERMANENT,
        _words(
            r"\b(not|un)[ -]?(supported|implemented|allowed|available)\b",
            r"\bdivision by zero\b",
            r"\bsyntax ?error\b",
            r"\bread[ -]only\b",
            r"\balready exists\b",
            r"\bimpossible\b",
            r"不支持|不允许|已存在|未实现|只读",
        ),
    ),
    (
        FailureClass.VALIDATION,
        _words(
            r"\binvalid (argument|parameter|value|input|format|url|date|json)",
            r"\b(is|are) (required|missing)\b",
            r"\bmissing (required )?(argument|parameter|field)",
            r"\bmust (be|have|not)\b",
            r"参数(错误|无效|缺失|不正确)|格式(错误|不正确)|必填",
        ),
    ),
)

_RULES: Final[tuple[FailureRule, ...]] = (by_advice, by_type, by_status, by_words, by_flag)
