"""Real HTTP servers on this machine, which answer as a test says: properly, halfway, or never."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from anyio.from_thread import start_blocking_portal

from tests.support.ports import reserved_port

MAX_HEAD_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Request:
    """A request as the server read it; the names of the headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Answer(NamedTuple):
    """What the server sends, a body or the events of a stream, and what it does with the connection then."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""
    events: Iterable[bytes] | None = None
    then: Literal["finish", "cut", "hang"] = "finish"


AnyAnswer = Answer | tuple[int, Mapping[str, str], bytes] | None
"""An answer, its first three parts, or None: nothing is ever sent, until the client closes the connection."""
Handler = Callable[[Request], AnyAnswer | Awaitable[AnyAnswer]]
HANG = None


@dataclass
class HttpServer:
    """A server that runs, and the requests that it has received so far."""

    port: int
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    """How many are open."""
    abandoned: int = 0
    """How many requests a client gave up while it waited for their answers or the rest of them."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    @property
    def bodies(self) -> list[Any]:
        """The JSON values that the requests brought."""
        return [request.json for request in self.requests]


@asynccontextmanager
async def serve_http(handler: Handler, *, port: int = 0) -> AsyncIterator[HttpServer]:
    """Answer requests to 127.0.0.1 in the loop of the test."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
                await _answer_requests(reader, writer, handler, server)
        except ConnectionError:
            server.abandoned += 1
        finally:
            writer.close()
            server.connections -= 1

    listener = await asyncio.start_server(serve, "127.0.0.1", port, limit=MAX_HEAD_BYTES)
    server = HttpServer(port=listener.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


@contextmanager
def serve_http_in_thread(handler: Handler, *, port: int = 0) -> Iterator[HttpServer]:
    """Answer requests in a thread with a loop of its own: for a test that blocks while a program runs."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve_http(handler, port=port)) as server,
    ):
        yield server


@contextmanager
def address_without_server() -> Iterator[str]:
    """Reserve a port at which nothing listens: connections are refused."""
    with reserved_port() as port:
        yield f"http://127.0.0.1:{port}"


def answers_in_order(*answers: AnyAnswer) -> Handler:
    """Give the answers in order, and the last one to every further request."""
    remaining = list(answers)
    return lambda request: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(status, {"Content-Type": "application/json", **names}, json.dumps(value).encode())


async def _answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, server: HttpServer
) -> None:
    """Until the client closes the connection, or an answer ends it."""
    while True:
        request = await _read_request(reader)
        server.requests.append(request)
        result = handler(request)
        parts = await result if inspect.isawaitable(result) else result
        answer = None if parts is None else Answer(*parts)
        if answer is not None:
            await _send(answer, writer, is_head=request.method == "HEAD")
        if answer is None or answer.then == "hang":
            await reader.read()  # until the client closes the connection
            server.abandoned += 1
            return
        if answer.then == "cut":
            return


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _send(answer: Answer, writer: asyncio.StreamWriter, *, is_head: bool) -> None:
    headers = {"Content-Length": str(len(answer.body))}
    if answer.events is not None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    lines = [f"{name}: {value}" for name, value in {**headers, **answer.headers}.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {answer.status} Answer", *lines, "", ""]).encode())
    if not is_head:
        writer.write(answer.body)
        for event in answer.events or ():
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
        if answer.events is not None and answer.then == "finish":
            writer.write(b"0\r\n\r\n")
    await writer.drain()
