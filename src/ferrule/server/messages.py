"""Bodies of requests and responses, for the applications that are called without Starlette's layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import Receive, Send

from ferrule.core.content import encode_json
from ferrule.server.problems import Problem


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request; a Problem if the client disconnects before it has sent all of it."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        return body
    parts = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise Problem(400, "The client disconnected before it had sent the whole body.")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then what follows."""
    is_given = False

    async def receive_again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encode_answer(content: Any) -> bytes:
    """JSON; what orjson cannot encode, such as a number of more than 64 bits, is converted first."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return encode_json(content)


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
