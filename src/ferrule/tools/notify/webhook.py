"""Sending a notice to a webhook: one request, never a second one.

The configuration chose the host, so it may be a private one; redirects are not followed. Each notice has a connection
of its own: one that was kept open may be dead, which shows only when it is too late to tell whether a request arrived.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from ferrule.content import encode_json
from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import GuardedClient, Response, shown_url
from ferrule.executors.http.patience import retry_after
from ferrule.executors.http.response_body import beginning_of_body
from ferrule.executors.secrets import SHORTEST, Secrets
from ferrule.executors.variables import expand_variables
from ferrule.tools.notify.config import ChannelConfig
from ferrule.tools.notify.doubt import in_doubt
from ferrule.tools.notify.formats import FORMATS, SIGNED, Format
from ferrule.tools.notify.notice import Notice

MAX_RESPONSE: Final = 100_000
_PASSING: Final = frozenset({408, 425, 429, 503})
_DOUBTFUL: Final = frozenset({500, 502, 504})
"""Whoever answers this may have handed the message on before."""


class Webhook:
    """A channel of kind `webhook`."""

    def __init__(self, name: str, config: ChannelConfig, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._name, self._config, self._guard, self._environ = name, config, guard, environ
        self._what = f"the channel {name!r}"

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        form = FORMATS[self._config.format]
        self._require_short(form, notice)
        url = expand_variables(self._config.url, self._environ)
        address, body = self._signed(url, form.body(notice))
        secrets = self._secrets(url)
        with secrets.hidden_in_errors():
            response = await self._post(address, encode_json(body), seconds)
            # Here too: what is cut out of an answer might begin or end in the middle of a secret.
            failure = self._failure(form, replace(response, content=secrets.hide_in_bytes(response.content)))
            if failure is not None:
                raise failure
        return {}

    async def _post(self, address: str, content: bytes, seconds: float) -> Response:
        headers = {name: expand_variables(value, self._environ) for name, value in self._config.headers.items()}
        client = GuardedClient(self._guarded(address), max_response=MAX_RESPONSE)
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
            raise _told(error) from error
        finally:
            await client.aclose()

    def _require_short(self, form: Format, notice: Notice) -> None:
        if form.most is not None and (length := form.length(notice)) > form.most:
            unit = "bytes" if form.counts_bytes else "characters"
            raise Retry(
                f"Title and message have {length:,} {unit}; the channel {self._name!r} takes {form.most:,}. "
                "Nothing was sent: say it in fewer words."
            )

    def _signed(self, url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self._config.secret:
            return url, body
        secret = expand_variables(self._config.secret, self._environ)
        return SIGNED[self._config.format](url, body, secret, time.time())

    def _secrets(self, url: str) -> Secrets:
        secrets = Secrets([self._config.url, self._config.secret, self._config.headers], self._environ)
        secrets.add(part for part in _secret_parts(url) if len(part) >= SHORTEST)
        return secrets

    def _guarded(self, url: str) -> AddressGuard:
        import httpx

        try:
            host = httpx.URL(url).raw_host.decode("ascii")
        except httpx.InvalidURL:
            host = ""
        if not host:
            raise ExecutionFailed(f"The url of {self._what} is not valid. Change it in the configuration.")
        return replace(self._guard, allowed_hosts=(*self._guard.allowed_hosts, host))

    async def _refuse_redirect(self, url: str) -> None:
        # After most redirects what was posted is not posted again, and an answer to something else says nothing.
        told = f"{self._what} leads to {shown_url(url)}. Set that as its url in the configuration."
        raise ExecutionFailed(told, untrusted=True)

    def _failure(self, form: Format, response: Response) -> CallError | None:
        """Why an answer does not mean that the message was taken."""
        if response.status_code >= 400:
            return self._failure_of_status(response)
        if not 200 <= response.status_code < 300:
            return in_doubt(ExecutionFailed(f"{self._what} answered with status {response.status_code}."))
        if not form.code:
            return None
        return self._failure_of_code(form, response)

    def _failure_of_status(self, response: Response) -> CallError:
        said = beginning_of_body(response, 300).rstrip(".")
        told = f"{self._what} answered with status {response.status_code}" + (f": {said}." if said else ".")
        facts: dict[str, Any] = {"untrusted": True} if said else {}
        if response.status_code in _DOUBTFUL:
            return in_doubt(Transient(told, **facts))
        if response.status_code in _PASSING:
            wait = retry_after(response.headers)
            return Transient(told, **facts, **({} if wait is None else {"retry_after": wait}))
        return ExecutionFailed(f"{told} Check the channel in the configuration. Nothing was sent.", **facts)

    def _failure_of_code(self, form: Format, response: Response) -> CallError | None:
        try:
            answer = json.loads(response.content)
            code, words = answer[form.code], str(answer.get(form.words, ""))[:300]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            told = f"{self._what} gave an answer that is none of {self._config.format}: "
            said = beginning_of_body(response, 200) or "nothing"
            return in_doubt(ExecutionFailed(f"{told}{said}.", untrusted=True))
        if code == 0:
            return None
        kind = Transient if isinstance(code, int) and code in form.passing else ExecutionFailed
        why = f"{words} ({form.code} {repr(code)[:100]})"
        return kind(f"{self._what} did not take the message: {why}. Nothing was sent.", untrusted=True)


def _secret_parts(url: str) -> Iterator[str]:
    """Whoever knows the address of a webhook can write to it: all but the host is secret, and so is each key in it."""
    place, _, rest = url.partition("://")[2].partition("/")
    path, _, query = rest.partition("?")
    yield from (url, path, query)
    yield from (part for part in path.split("/") if any(map(str.isdigit, part)))  # the others are plain words
    yield from (value for _, value in parse_qsl(query))
    if user := unquote(place.rpartition("@")[0]):
        yield from (user, user.partition(":")[2], base64.b64encode(user.encode()).decode())


def _told(error: CallError) -> CallError:
    """A failure to send, in the words of this tool."""
    if error.details.get("outcome") == "unknown" or isinstance(error, TimedOut):
        error = in_doubt(error)
    if isinstance(error, Retry) or error.details.get("unknown_host"):
        # It is the configuration that is wrong, not an argument.
        return ExecutionFailed(f"{error} Change the channel in the configuration.", **_without_advice(error))
    if isinstance(error, TransportFault):  # one channel of several: the way to the tool is not broken
        return Transient(str(error), **error.details)
    return error


def _without_advice(error: CallError) -> dict[str, Any]:
    return {name: value for name, value in error.details.items() if name != "advice"}
