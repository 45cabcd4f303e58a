"""Requests with an `Idempotency-Key`: a repeated request gets the stored response of the first one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import scrypt, sha256
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from ferrule.core.content import encode_json
from ferrule.engine import ToolEngine
from ferrule.errors import StoreError, ToolNotFound
from ferrule.server.authentication import Client
from ferrule.server.responses import Problem, problem_of_error
from ferrule.store import client_requests
from ferrule.store.database import StoreDatabase

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("ferrule.server")

MAX_KEY_LENGTH: Final = 200
KEY_LIFETIME: Final = 86_400.0
STORE_DELAYS: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to claim an idempotency key or to store its response while the database is away."""
SLOW_DIGEST: Final = "scrypt:"
"""The prefix of digests of requests that contain secrets."""


class IdempotentRequests:
    """Answers each request with a key once, on all servers of a store together."""

    def __init__(self, engine: ToolEngine) -> None:
        self._engine = engine

    async def respond(
        self,
        request: Request,
        client: Client,
        content: Any,
        respond: Callable[[], Coroutine[Any, Any, Response]],
        calls: Iterable[tuple[str, str | None, Mapping[str, Any]]] = (),
    ) -> Response:
        """Return the response; the stored one for a repetition of a request with the same `Idempotency-Key`.

        A response is stored like a record, without secrets: also without those in the arguments of the `calls` that
        the request makes, which are a tool, an action and arguments each.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return await respond()
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise Problem(400, f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.")
        store, principal = self._engine.store, f"{client.tenant}/{client.name}"
        arguments_of_calls = []
        for name, action, arguments in calls:
            secret_names: frozenset[str] = frozenset()
            with suppress(ToolNotFound):  # such as a tool of a server that is still starting
                secret_names = self._engine.registry.find(name, action)[1].secret_names
            arguments_of_calls.append((secret_names, arguments))
        has_secrets = any(names for names, _ in arguments_of_calls) or store.redaction.redact(content) != content
        make_digest = partial(_digest_request, [request.url.path, content], f"{principal}/{key}")
        digest = await make_digest(is_slow=has_secrets)
        claim_id = uuid4().hex
        earlier = await self._query_when_available(
            client_requests.claim_request, principal, key, digest, claim_id, lifetime=KEY_LIFETIME
        )
        if earlier is not None:
            # A server with other tools or other secrets may have chosen the other digest.
            is_same = earlier["digest"] == await make_digest(is_slow=earlier["digest"].startswith(SLOW_DIGEST))
            return _repeat_response(earlier, key, is_same=is_same)
        try:
            response = await respond()
        except BaseException as error:
            if isinstance(error, Exception) and problem_of_error(error).status < 500:  # nothing was executed
                await self._query_when_available(client_requests.release_request, principal, key, claim_id)
            raise
        if response.status_code >= 400:  # nothing was executed either: it may be tried again
            await self._query_when_available(client_requests.release_request, principal, key, claim_id)
            return response
        secrets = {
            text for names, arguments in arguments_of_calls for text in store.redaction.find_secrets(arguments, names)
        }
        body = self._redact_stored_response(bytes(response.body).decode(), sorted(secrets, key=len, reverse=True))
        try:
            await self._query_when_available(
                client_requests.complete_request, principal, key, response.status_code, body
            )
        except StoreError as error:  # the call was made: the client gets its answer, and a repetition is refused
            logger.error("key=<%s>, error=<%s> | the response of a request is not stored", key, error)
        return response

    async def _query_when_available(
        self, function: Callable[Concatenate[StoreDatabase, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Ask the store. While the database restarts, the query is repeated."""
        store = self._engine.store
        for delay in STORE_DELAYS:
            try:
                return await store.query(function, *arguments, **options)
            except StoreError:
                await asyncio.sleep(delay)
        return await store.query(function, *arguments, **options)

    def _redact_stored_response(self, body: str, secrets: Sequence[str]) -> str:
        """Return the body of a response without secrets, including the secrets of the run that it is about."""
        store, content = self._engine.store, json.loads(body)
        cleaned = store.redaction.redact(content, tuple(secrets))
        # Our format and OpenAI's formats name the run there.
        for members in (content, content.get("ferrule"), content.get("metadata")):
            if isinstance(members, dict) and isinstance(run_id := members.get("run_id"), str):
                cleaned = store.get_run_secrets(run_id).redact(cleaned)
        return body if cleaned == content else json.dumps(cleaned)


async def _digest_request(content: Any, salt: str, *, is_slow: bool) -> str:
    """Compute a digest of a request. A slow digest is for requests with secrets, which must not be found by trying."""
    data = encode_json(content, escape_surrogates=True)
    if not is_slow:
        return sha256(data).hexdigest()
    encoded = salt.encode("utf-8", "surrogatepass")
    digest = await asyncio.to_thread(scrypt, data, salt=encoded, n=2**14, r=8, p=1, dklen=32)
    return SLOW_DIGEST + digest.hex()


def _repeat_response(earlier: dict[str, Any], key: str, *, is_same: bool) -> Response:
    if not is_same:
        raise Problem(422, f"The Idempotency-Key {key!r} was used for another request. Use a new one.")
    if earlier["response"] is None:
        raise Problem(
            409,
            f"The request with the Idempotency-Key {key!r} has not ended yet, or its server died while it ran.",
            headers={"Retry-After": "1"},
        )
    headers = {"Idempotency-Replayed": "true"}
    return Response(earlier["response"], earlier["status"], headers=headers, media_type="application/json")
