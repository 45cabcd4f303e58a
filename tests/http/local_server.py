"""A real HTTP server on this machine, for executors to reach."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, dict[str, str], bytes]


@dataclass
class LocalServer:
    port: int
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def local_server(answer: Callable[[Request], Answer | None]) -> AsyncIterator[LocalServer]:
    """Serves 127.0.0.1; a request that is answered with None is never answered at all."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        server.connections += 1
        with suppress(ConnectionError):
            await _converse(reader, writer, server, answer)
        writer.close()
        server.connections -= 1

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = LocalServer(port=listening.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listening.close()
        for writer in writers:
            writer.close()
        while server.connections:
            await asyncio.sleep(0.001)
        await listening.wait_closed()


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server: LocalServer,
    answer: Callable[[Request], Answer | None],
) -> None:
    while (request := await _read_request(reader)) is not None:
        server.requests.append(request)
        answered = answer(request)
        if answered is None:
            await reader.read()  # until the client goes away
            return
        status, headers, body = answered
        lines = [f"{name}: {value}" for name, value in {"Content-Length": str(len(body)), **headers}.items()]
        writer.write("\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode() + body)
        await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
