"""Connections of clients that nobody knows yet: what they send before the end of the headers is bounded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="pip install 'ferrule[server]'")

import uvicorn

from ferrule.server.listening import MAX_HEAD_SIZE, LimitedHttpProtocol
from tests.support.waiting import until

pytestmark = pytest.mark.integration


class ImpatientProtocol(LimitedHttpProtocol):
    head_timeout = 0.2


async def answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def connection(
    protocol: type[LimitedHttpProtocol],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = uvicorn.Server(uvicorn.Config(answer, port=0, http=protocol, lifespan="off", log_level="error"))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        yield reader, writer
        writer.close()
    finally:
        server.should_exit = True
        await task


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX-Long: ", b"GET / HTTP/1.1\r\n"])
async def test_a_head_that_does_not_end_is_refused(start: bytes):
    piece = b"X-Header: value\r\n" * 4096 if start.endswith(b"\n") else b"x" * MAX_HEAD_SIZE
    async with connection(LimitedHttpProtocol) as (reader, writer):
        # Not a byte more than what the server reads: the end of a connection with unread bytes drops the answer.
        writer.write((start + piece)[: MAX_HEAD_SIZE + 1])
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 431 ")


async def test_long_bodies_and_further_requests_are_read():
    async with connection(LimitedHttpProtocol) as (reader, writer):
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost:"])
async def test_a_connection_without_a_complete_head_is_closed(start: bytes):
    async with connection(ImpatientProtocol) as (reader, writer):
        writer.write(start)
        with suppress(ConnectionResetError):  # the server may have closed it before it got anything
            assert await asyncio.wait_for(reader.read(), 60) == b""
