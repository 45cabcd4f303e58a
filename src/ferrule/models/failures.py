"""Exceptions of foreign SDKs become `ModelUnavailable` (try later) or `ModelRefused` (do not)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Any, Literal, TypeAlias

from ferrule.errors import ModelError, ModelRefused, ModelUnavailable, RequestTooLong, text_of

Verdict: TypeAlias = Literal["unavailable", "refused", "by_status", "by_words"]
"""What becomes of an exception; the last two look at what it carries."""
Verdicts: TypeAlias = Mapping[str, Verdict]
"""By the names of classes, so that the SDK need not be imported to have the table."""

_STATUS_MAY_PASS = frozenset({408, 409, 421, 423, 425, 429, 499})
_NO_MONEY = ("insufficient_quota", "billing", "credit balance", "spend_limit", "spend limit")
_TOO_LONG = ("context_length", "context length", "context window", "context size", "prompt is too long")
_FINAL = (
    *_NO_MONEY,
    *_TOO_LONG,
    *("invalid_request", "not_found", "authentication", "permission", "invalid_api_key"),
)
"""Words of errors that stay, whatever their status says."""

_ADVICE = {
    400: "Change the request.",
    401: "Check the API key.",
    402: "Check the account.",
    403: "Check what the API key may do.",
    404: "Check the name of the model and the base URL.",
    413: "Send less.",
}


def verdict_of(error: BaseException, verdicts: Verdicts) -> Verdict | None:
    """The nearest class of the exception that the table names; None for an exception of somebody else."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((verdicts[name] for name in names if name in verdicts), None)


def model_error(error: Exception, verdicts: Verdicts, *, model: str) -> ModelError | None:
    """What to raise instead. None: the exception is not the SDK's, and nobody's business here."""
    verdict = verdict_of(error, verdicts)
    if verdict is None:
        return None
    status = getattr(error, "status_code", None)
    if verdict == "by_status":
        verdict = _by_status(status, _words(error))
    elif verdict == "by_words":
        verdict = "refused" if _is_final(_words(error)) else "unavailable"
    said = _said(error)
    said += "" if said.endswith((".", "!", "?")) else "."
    where = f" (status {status})" if isinstance(status, int) and status >= 400 else ""
    if verdict == "refused":
        advice = _ADVICE.get(status, "") if isinstance(status, int) else ""
        too_long = status == 413 or any(word in _words(error) for word in _TOO_LONG)
        kind = RequestTooLong if too_long else ModelRefused
        return kind(f"Model {model!r} refused{where}: {said} {advice}".rstrip())
    return ModelUnavailable(f"Model {model!r} is not available{where}: {said}", retry_after=_retry_after(error))


def _by_status(status: Any, words: str) -> Verdict:
    if status == 501 or not isinstance(status, int):
        return "refused"
    if status < 400:  # an error in the midst of a stream that began well
        return "refused" if _is_final(words) else "unavailable"
    if status == 429:
        return "refused" if any(word in words for word in _NO_MONEY) else "unavailable"
    return "unavailable" if status >= 500 or status in _STATUS_MAY_PASS else "refused"


def _is_final(words: str) -> bool:
    return any(word in words for word in _FINAL)


def _words(error: Exception) -> str:
    return f"{getattr(error, 'code', '')} {getattr(error, 'type', '')} {getattr(error, 'body', '')} {error}".casefold()


def _said(error: Exception) -> str:
    """The server's own sentence, where its answer has one, else the exception's, and below it the true cause."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(inner, Mapping):
        inner = inner.get("message") or inner.get("detail")
    if isinstance(inner, str) and inner.strip():
        return inner.strip()[:1000]
    said = text_of(error) or type(error).__name__
    cause = text_of(error.__cause__) if error.__cause__ is not None else ""
    return f"{said} {cause}".strip()[:1000]


def _retry_after(error: Exception) -> float | None:
    """Seconds, from `retry-after-ms` or `retry-after` as seconds or as a date."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    date = parsedate_tz(headers.get("retry-after", ""))
    try:
        return None if date is None else max(0.0, mktime_tz(date) - time.time())
    except (OverflowError, ValueError):  # a year no calendar has
        return None
