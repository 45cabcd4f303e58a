"""What the models of network providers have in common: a client of the provider's SDK, requests that adapt to what a
server accepts, and errors that say whether to try again.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from ferrule.core.content import encode_json
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.errors import ModelError, ModelRefused, ModelUnavailable, RequestTooLong, error_text
from ferrule.http.retry import parse_retry_after
from ferrule.models.reply_checks import complete_usage, hide_key

logger = logging.getLogger("ferrule.models")


def schema_instruction(schema: Mapping[str, Any]) -> str:
    """Return the prompt for models that cannot be constrained to a schema while they write."""
    return f"Answer with one JSON object and nothing else. It must fit this JSON Schema: {encode_json(schema).decode()}"


# Optional features.
# Servers that offer the same API differ in what they support: one has no `stream_options`, another no `temperature`, a
# third no JSON Schema, and none announces it. So every feature is requested; a refusal that names one costs one more
# request, and is remembered.


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalFeature:
    """Part of a request that a server may not support."""

    name: str
    parameters: tuple[str, ...]
    """The request's parameters that ask for it."""
    keywords: tuple[str, ...]
    """An error message with one of these is about it."""
    levels: int = 1
    """How many times the request can be reduced until the feature is not used at all."""


Reductions: TypeAlias = Mapping[str, int]
"""By how many levels each feature is reduced for this server."""
Parameters: TypeAlias = dict[str, Any]

_FEATURE_ERRORS = frozenset({400, 422})
_SIZE_PHRASES = ("context length", "context window", "context size", "too long", "too large", "at most")
"""Such an error may mention `max_tokens` too, but there the number is wrong and not the parameter."""


class NetworkModel(ABC):
    """A model behind the API of a provider, through the provider's SDK."""

    features: Sequence[OptionalFeature]
    errors: ErrorTable

    def __init__(self, name: str) -> None:
        self.name = name
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._reductions: Reductions = {}

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        client = await self._get_client()
        key = client.api_key or getattr(client, "auth_token", None)
        reply = await hide_key(key, on_text, partial(self._send_within_features, client, request))
        return complete_usage(reply, request)

    async def aclose(self) -> None:
        """Close the connections. The model can still be used; it opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    @abstractmethod
    def _create_client(self) -> Any: ...

    @abstractmethod
    def _build_parameters(self, request: ModelRequest, reductions: Reductions, *, stream: bool) -> Parameters:
        """Return the parameters of a request, without what the server has refused before."""

    @abstractmethod
    async def _send_request(self, client: Any, parameters: Parameters, on_text: TextSink | None) -> ModelReply: ...

    async def _get_client(self) -> Any:
        """Return the client of this event loop, to which its connections belong.

        It is created in a thread, because importing an SDK takes up to a second and would block the event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._client, self._loop, self._lock = None, loop, asyncio.Lock()
        if self._client is None:
            async with self._lock:
                self._client = self._client or await asyncio.to_thread(self._create_client)
        return self._client

    async def _send_within_features(self, client: Any, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        """Send less when the server refuses a feature. Other failures become model errors."""
        reductions = self._reductions
        while True:
            parameters = self._build_parameters(request, reductions, stream=on_text is not None)
            try:
                return await self._send_request(client, parameters, on_text)
            except Exception as error:
                reduced = self._reduce_refused_feature(error, parameters, reductions)
                if reduced is None:
                    failure = to_model_error(error, self.errors, model=self.name)
                    if failure is None:
                        raise
                    raise failure from error
                reductions = reduced
                if "invalid schema" not in str(error).casefold():  # that is only about this one schema
                    self._reductions = reduced

    def _reduce_refused_feature(
        self, error: Exception, parameters: Parameters, reductions: Reductions
    ) -> Reductions | None:
        """Return the reductions to try after this error; None when it is not about any feature."""
        if getattr(error, "status_code", None) not in _FEATURE_ERRORS:
            return None
        message = f"{getattr(error, 'param', '')} {getattr(error, 'body', '')} {error}".casefold()
        if any(phrase in message for phrase in _SIZE_PHRASES):
            return None
        for feature in self.features:
            level = reductions.get(feature.name, 0)
            is_used = level < feature.levels and any(parameter in parameters for parameter in feature.parameters)
            if is_used and any(keyword in message for keyword in feature.keywords):
                logger.warning(
                    "model=<%s>, feature=<%s> | not supported by the server, the request is reduced",
                    self.name,
                    feature.name,
                )
                return {**reductions, feature.name: level + 1}
        return None


# Reading replies. SDKs do not check what a server sends, and fail in any way over a reply of another form.


@contextmanager
def report_unreadable_reply(model: str) -> Iterator[None]:
    """Raise `ModelUnavailable` instead of what an SDK raises over a reply that it cannot read."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        problem = error_text(error)[:_MAX_MESSAGE]
        raise ModelUnavailable(f"Model {model!r} sent a reply that cannot be read: {problem}") from error


async def read_events(stream: Any, model: str) -> AsyncIterator[Any]:
    """Yield the events of a reply that is streamed."""
    events = aiter(stream)
    while True:
        with report_unreadable_reply(model):
            try:
                event = await anext(events)
            except StopAsyncIteration:
                return
        yield event


# Errors: exceptions of SDKs become `ModelUnavailable` (try later) or `ModelRefused` (do not).

ErrorClass: TypeAlias = Literal["unavailable", "refused", "by_status", "by_message"]
"""What an exception becomes; the last two depend on its content."""
ErrorTable: TypeAlias = Mapping[str, ErrorClass]
"""By the names of exception classes, so that the table does not need the SDK to be imported."""
COMMON_SDK_ERRORS: ErrorTable = {
    "APIError": "by_message",
    "APIConnectionError": "unavailable",
    "APITimeoutError": "unavailable",
    "APIResponseValidationError": "unavailable",
    "APIStatusError": "by_status",
    # Not defined by the SDKs, but they let them through: broken connections, and responses that are not JSON.
    "TransportError": "unavailable",
    "JSONDecodeError": "unavailable",
    "UnicodeDecodeError": "unavailable",
}
"""The exceptions that the SDKs of OpenAI and Anthropic both have."""

_TEMPORARY_STATUS = frozenset({408, 409, 421, 423, 425, 429, 499})
_QUOTA_PHRASES = ("insufficient_quota", "billing", "credit balance", "spend_limit", "spend limit")
_TOO_LONG_PHRASES = ("context_length", "context length", "context window", "context size", "prompt is too long")
_PERMANENT_PHRASES = (
    *_QUOTA_PHRASES,
    *_TOO_LONG_PHRASES,
    *("invalid_request", "not_found", "authentication", "permission", "invalid_api_key"),
)
"""Errors with these do not pass, whatever their status is."""
_ADVICE = {
    400: "Change the request.",
    401: "Check the API key.",
    402: "Check the account.",
    403: "Check what the API key may do.",
    404: "Check the name of the model and the base URL.",
    413: "Send less.",
}
_CONNECTION_ADVICE = "Check that a server runs at this address, and that this machine can reach it."
_MAX_MESSAGE = 1000


def classify_error(error: BaseException, table: ErrorTable) -> ErrorClass | None:
    """By the nearest base class that the table names; None for an exception that is not the SDK's."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((table[name] for name in names if name in table), None)


def to_model_error(error: Exception, table: ErrorTable, *, model: str) -> ModelError | None:
    """Return what to raise instead. None: the exception is not the SDK's, and is raised unchanged."""
    error_class = classify_error(error, table)
    if error_class is None:
        return None
    status = getattr(error, "status_code", None)
    parts = [getattr(error, name, "") for name in ("code", "type", "body")]
    details = " ".join(map(str, (*parts, error))).casefold()
    if error_class == "by_status":
        error_class = _classify_by_status(status, details)
    elif error_class == "by_message":
        error_class = "refused" if _is_permanent(details) else "unavailable"
    message = _error_message(error)
    message += "" if message.endswith((".", "!", "?")) else "."
    suffix = f" (status {status})" if isinstance(status, int) and status >= 400 else ""
    if error_class == "refused":
        advice = _ADVICE.get(status, "") if isinstance(status, int) else ""
        is_too_long = status == 413 or any(phrase in details for phrase in _TOO_LONG_PHRASES)
        kind = RequestTooLong if is_too_long else ModelRefused
        return kind(f"Model {model!r} refused the request{suffix}: {message} {advice}".rstrip())
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    advice = _CONNECTION_ADVICE if type(error).__name__ == "APIConnectionError" else ""
    return ModelUnavailable(
        f"Model {model!r} is not available{suffix}: {message} {advice}".rstrip(), retry_after=parse_retry_after(headers)
    )


def _classify_by_status(status: Any, details: str) -> ErrorClass:
    if status == 501 or not isinstance(status, int):
        return "refused"
    if status < 400:  # an error inside a stream whose start was fine
        return "refused" if _is_permanent(details) else "unavailable"
    if status == 429:
        return "refused" if any(phrase in details for phrase in _QUOTA_PHRASES) else "unavailable"
    return "unavailable" if status >= 500 or status in _TEMPORARY_STATUS else "refused"


def _is_permanent(details: str) -> bool:
    return any(phrase in details for phrase in _PERMANENT_PHRASES)


def _error_message(error: Exception) -> str:
    """Return the server's own sentence where its response has one, else the exception's text and its cause."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(inner, Mapping):
        inner = inner.get("message") or inner.get("detail")
    if isinstance(inner, str) and inner.strip():
        return inner.strip()[:_MAX_MESSAGE]
    message = error_text(error) or type(error).__name__
    url = str(getattr(getattr(error, "request", None), "url", "")).partition("?")[0]
    if getattr(error, "status_code", None) is None and url:  # there is no response
        message = f"{message.rstrip('.')} ({url})."
    cause = error_text(error.__cause__) if error.__cause__ is not None else ""
    return f"{message} {cause}".strip()[:_MAX_MESSAGE]
