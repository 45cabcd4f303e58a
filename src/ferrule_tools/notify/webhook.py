"""Sending a notice to a webhook: one request, never a second attempt.

The host is set in the configuration, so it may be private; redirects are not followed. Each notice uses a new
connection: on a reused one that is dead, a failed request leaves open whether it arrived.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from ferrule.core.content import encode_json
from ferrule.core.secrets import MIN_SECRET_LENGTH, Secrets
from ferrule.core.variables import expand_variables
from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, Transient, TransportFault
from ferrule.http.bodies import body_excerpt
from ferrule.http.client import GuardedClient, HttpResponse, format_url
from ferrule.http.guard import AddressGuard
from ferrule.http.retry import parse_retry_after
from ferrule_tools.notify.config import ChannelConfig
from ferrule_tools.notify.message import FORMATS, SIGNERS, Notice, WebhookFormat, mark_as_maybe_sent

MAX_RESPONSE: Final = 100_000
_TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 503})
_UNKNOWN_OUTCOME: Final = frozenset({500, 502, 504})
"""A server or gateway may respond with these after the message was already delivered."""


class WebhookChannel:
    """A channel of kind `webhook`."""

    def __init__(self, name: str, config: ChannelConfig, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._name, self._config, self._guard, self._environ = name, config, guard, environ
        self._what = f"the channel {name!r}"

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        service = FORMATS[self._config.format]
        self._require_short_notice(service, notice)
        url = expand_variables(self._config.url, self._environ)
        address, body = self._sign(url, service.body(notice))
        secrets = self._secrets(url)
        with secrets.hide_in_errors():
            response = await self._post(address, encode_json(body), seconds)
            # Hidden before the response is shortened: the cut might go through the middle of a secret.
            failure = self._failure(service, replace(response, content=secrets.hide_in_bytes(response.content)))
            if failure is not None:
                raise failure
        return {}

    async def _post(self, address: str, content: bytes, seconds: float) -> HttpResponse:
        headers = {name: expand_variables(value, self._environ) for name, value in self._config.headers.items()}
        client = GuardedClient(self._guard_for(address), max_response=MAX_RESPONSE)
        try:
            return await client.send(
                "POST",
                address,
                what=self._what,
                headers={"Content-Type": "application/json; charset=utf-8", **headers},
                content=content,
                timeout=seconds,
                only_once=True,
                on_redirect=self._refuse_redirect,
            )
        except CallError as error:
            raise _to_notify_error(error) from error
        finally:
            await client.aclose()

    def _require_short_notice(self, service: WebhookFormat, notice: Notice) -> None:
        if service.max_length is not None and (length := service.length(notice)) > service.max_length:
            unit = "bytes" if service.counts_bytes else "characters"
            raise Retry(
                f"Title and message have {length:,} {unit}; the channel {self._name!r} takes {service.max_length:,}. "
                "Nothing was sent: shorten the message."
            )

    def _sign(self, url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self._config.secret:
            return url, body
        secret = expand_variables(self._config.secret, self._environ)
        return SIGNERS[self._config.format](url, body, secret, time.time())

    def _secrets(self, url: str) -> Secrets:
        secrets = Secrets.from_template([self._config.url, self._config.secret, self._config.headers], self._environ)
        secrets.add(part for part in _secret_parts(url) if len(part) >= MIN_SECRET_LENGTH)
        return secrets

    def _guard_for(self, url: str) -> AddressGuard:
        import httpx

        try:
            host = httpx.URL(url).raw_host.decode("ascii")
        except httpx.InvalidURL:
            host = ""
        if not host:
            raise ExecutionFailed(f"The url of {self._what} is not valid. Change it in the configuration.")
        return replace(self._guard, allowed_hosts=(*self._guard.allowed_hosts, host))

    async def _refuse_redirect(self, url: str) -> None:
        # Most redirects turn a POST into a GET, whose response says nothing about the message.
        raise ExecutionFailed(
            f"{self._what} redirects to {format_url(url)}. Set that as its url in the configuration.", untrusted=True
        )

    def _failure(self, service: WebhookFormat, response: HttpResponse) -> CallError | None:
        """Why the message was not accepted; None if it was."""
        if response.status_code >= 400:
            return self._failure_of_status(response)
        if not 200 <= response.status_code < 300:
            return mark_as_maybe_sent(ExecutionFailed(f"{self._what} answered with status {response.status_code}."))
        if not service.code_key:
            return None
        return self._failure_of_code(service, response)

    def _failure_of_status(self, response: HttpResponse) -> CallError:
        body = body_excerpt(response, 300).rstrip(".")
        message = f"{self._what} answered with status {response.status_code}" + (f": {body}." if body else ".")
        details: dict[str, Any] = {"untrusted": True} if body else {}
        if response.status_code in _UNKNOWN_OUTCOME:
            return mark_as_maybe_sent(Transient(message, **details))
        if response.status_code in _TRANSIENT_STATUS:
            wait = parse_retry_after(response.headers)
            return Transient(message, **details, **({} if wait is None else {"retry_after": wait}))
        return ExecutionFailed(f"{message} Check the channel in the configuration. Nothing was sent.", **details)

    def _failure_of_code(self, service: WebhookFormat, response: HttpResponse) -> CallError | None:
        try:
            answer = json.loads(response.content)
            code, reason = answer[service.code_key], str(answer.get(service.reason_key, ""))[:300]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            body = body_excerpt(response, 200) or "nothing"
            message = f"{self._what} returned a response that {self._config.format} does not use: {body}."
            return mark_as_maybe_sent(ExecutionFailed(message, untrusted=True))
        if code == 0:
            return None
        kind = Transient if isinstance(code, int) and code in service.transient_codes else ExecutionFailed
        reason = f"{reason} ({service.code_key} {repr(code)[:100]})"
        return kind(f"{self._what} did not accept the message: {reason}. Nothing was sent.", untrusted=True)


def _secret_parts(url: str) -> Iterator[str]:
    """Anyone with a webhook's URL can post to it, so everything but the host is secret, and so is each key in it."""
    host, _, rest = url.partition("://")[2].partition("/")
    path, _, query = rest.partition("?")
    yield from (url, path, query)
    yield from (part for part in path.split("/") if any(map(str.isdigit, part)))  # others are plain words of the API
    yield from (value for _, value in parse_qsl(query))
    if user := unquote(host.rpartition("@")[0]):
        yield from (user, user.partition(":")[2], base64.b64encode(user.encode()).decode())


def _to_notify_error(error: CallError) -> CallError:
    """Convert a transport failure into a failure of this tool."""
    if error.details.get("outcome") == "unknown" or isinstance(error, TimedOut):
        error = mark_as_maybe_sent(error)
    if isinstance(error, Retry) or error.details.get("unknown_host"):
        # The configuration is wrong, not an argument.
        return ExecutionFailed(f"{error} Change the channel in the configuration.", **_without_advice(error))
    if isinstance(error, TransportFault):  # one channel of several: the tool itself still works
        return Transient(str(error), **error.details)
    return error


def _without_advice(error: CallError) -> dict[str, Any]:
    return {name: value for name, value in error.details.items() if name != "advice"}
