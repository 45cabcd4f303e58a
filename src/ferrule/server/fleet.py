"""Several servers on one Postgres store, or several workers of one server: any of them shows what happens on the
others, and stops what runs there. A tool that one of them cannot reach is not called by the others for a while.

Servers tell each other what happens only while a client watches: a server with an open stream of events says so every
few seconds. Messages go through Postgres; with another store, the workers of one `ferrule serve` send them to each
other's private sockets. Each server and worker registers where the others reach it, for requests that only one of them
can answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from ferrule.agent import AgentAnswer
from ferrule.agent.run import RUN_PREFIX
from ferrule.core.aio import cancel_all
from ferrule.core.call import Progress, ToolExecutionResult
from ferrule.core.content import encode_json
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.core.permission import Principal
from ferrule.engine import ToolEngine
from ferrule.errors import SetupError, StoreError, text_with_notes
from ferrule.policy.approvals import ApprovalRequest
from ferrule.store.channel import ChannelMessage, StoreChannel
from ferrule.store.servers import (
    ServerAddress,
    list_open_circuits,
    list_servers,
    register_server,
    remove_server,
    store_open_circuit,
)

logger = logging.getLogger("ferrule.server")

WATCH_INTERVAL: Final = 5.0
"""Seconds between two messages of a server whose clients watch."""
WATCH_LIFETIME: Final = 15.0
CANCEL_TIMEOUT: Final = 20.0
CHECK_INTERVAL: Final = 0.1
ADDRESS_LIFETIME: Final = 5.0
"""Seconds for which the address of a server is believed: another program may be there later."""
LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks for a server that is not known."""
MAX_TEXT: Final = 1_000
"""Characters of an error that are told to other servers."""
_TYPES_OF_ONE_SERVER: Final = frozenset(
    {
        ToolEngineEventType.TOOL_LOADED,
        ToolEngineEventType.TOOL_ADDED,
        ToolEngineEventType.TOOL_UPDATED,
        ToolEngineEventType.TOOL_REMOVED,
        ToolEngineEventType.RELOAD_STARTED,
        ToolEngineEventType.RELOAD_COMPLETED,
        ToolEngineEventType.LOAD_ERROR,
    }
)
"""About its tools: each server loads its own."""
_APPROVAL_TYPES: Final = frozenset({ToolEngineEventType.APPROVAL_REQUESTED, ToolEngineEventType.APPROVAL_DECIDED})

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
SOCKET_URL: Final = "http://localhost"
MESSAGES_PATH: Final = "/internal/messages"
MAX_QUEUED_MESSAGES: Final = 1_000
SEND_TIMEOUT: Final = 5.0
"""Seconds that another worker has to take messages."""

Listener: TypeAlias = Callable[[ToolEngineEvent], None]


class ServerGone(Exception):
    """The other server does not run any more, or nobody listens at its address."""


class ServerOutOfReach(Exception):
    """The other server may run, but nothing could be sent to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRoute:
    """How another server is reached from here."""

    url: str
    socket: str = ""
    """The private socket of a worker of the same `ferrule serve`; empty for a server that is reached at its address."""
    secret: str = field(repr=False)


class PeerChannel:
    """Sends messages to the other workers of the same `ferrule serve`, which receive them at `MESSAGES_PATH`."""

    is_available = True

    def __init__(self, find_workers: Callable[[], Awaitable[dict[str, PeerRoute]]]) -> None:
        self._find_workers = find_workers
        self._queue: asyncio.Queue[ChannelMessage] = asyncio.Queue(MAX_QUEUED_MESSAGES)

    def send(self, message: ChannelMessage) -> None:
        """Send a message soon. A message that finds the queue full is not sent."""
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(message)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            messages = [await self._queue.get()]
            while not self._queue.empty():
                messages.append(self._queue.get_nowait())
            try:
                workers = await self._find_workers()
            except StoreError as error:
                logger.warning("messages=<%d>, error=<%s> | not sent to other workers", len(messages), error)
            else:
                await asyncio.gather(*(_post(each, messages) for each in workers.values()))


async def _post(worker: PeerRoute, messages: list[ChannelMessage]) -> None:
    """Let another worker act on messages; it has done so when this returns, unless it does not answer."""
    transport = httpx.AsyncHTTPTransport(uds=worker.socket)
    headers = {"Authorization": f"Bearer {worker.secret}", "Content-Type": "application/json"}
    content = encode_json(messages)  # a tool may have reported a number or a text that JSON does not have
    try:
        async with httpx.AsyncClient(transport=transport, timeout=SEND_TIMEOUT) as client:
            (await client.post(worker.url + MESSAGES_PATH, content=content, headers=headers)).raise_for_status()
    except httpx.HTTPError as error:
        logger.info("messages=<%d>, error=<%r> | not sent to another worker", len(messages), error)


class ServerFleet:
    """The other servers of this server's store."""

    def __init__(
        self,
        engine: ToolEngine,
        *,
        cancel_run: Callable[[str], bool],
        on_news: Callable[[], None],
        write_metrics: Callable[[], object],
        internal_url: str | None = None,
        private_socket: Path | None = None,
        internal_secrets: Sequence[str] = (),
    ) -> None:
        """Let `cancel_run` stop a run of this server, and call `on_news` when another server has done something, and
        `write_metrics` when another worker is asked for metrics.

        `internal_url` is where the others reach this server; None if they cannot. At `private_socket`, those reach it
        that have theirs in the same folder: the workers that share a port. With the first of the `internal_secrets`
        this server asks the others, and it accepts each of them; without any, each server makes its own secret.
        """
        self._engine, self._cancel_run, self._on_news = engine, cancel_run, on_news
        self._write_metrics = write_metrics
        self.server_id = uuid4().hex[:12]
        self._servers: dict[str, ServerAddress] = {}
        """The others, as far as they are known."""
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        store_channel = engine.store.open_channel(self.receive, self._read_missed_circuits)
        self._channel: StoreChannel | PeerChannel = store_channel
        if not store_channel.is_available and private_socket is not None:
            self._channel = PeerChannel(self._find_workers)
        self._open_circuit = engine.share_circuits(self._tell_open_circuit)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: set[Listener] = set()
        self._watched_until = 0.0
        self._unsubscribe: Callable[[], None] | None = None
        own_secret = "" if internal_secrets else secrets.token_urlsafe(32)
        self._fleet_secret = internal_secrets[0] if internal_secrets else ""
        self.secrets = tuple(internal_secrets) or (own_secret,)
        """What another server must know to let this server make calls."""
        self.address: ServerAddress | None = None
        """Where the other servers reach this server, if they can; None if this is the only server."""
        if self._channel.is_available:
            self.address = ServerAddress(
                server_id=self.server_id,
                url=internal_url or "" if store_channel.is_available else "",
                machine=socket.gethostname(),
                socket="" if private_socket is None else str(private_socket),
                secret=own_secret,
            )

    @property
    def is_available(self) -> bool:
        """Return whether there may be other servers."""
        return self.address is not None

    @property
    def is_reachable(self) -> bool:
        """Return whether other servers can send requests to this server."""
        return self.address is not None and bool(self.address.url or self.address.socket)

    async def run(self) -> None:
        """Talk to the other servers until cancelled."""
        talking = asyncio.create_task(self._channel.run())
        try:
            while self.is_available:
                await self.register()
                if self._listeners:
                    self._channel.send({"kind": "watch"})
                if self._unsubscribe is not None and time.monotonic() > self._watched_until:
                    self._unsubscribe()
                    self._unsubscribe = None
                await asyncio.sleep(WATCH_INTERVAL)
        finally:
            if self._unsubscribe is not None:
                self._unsubscribe()
            if self.address is not None:
                with suppress(StoreError):  # or else its leases end soon
                    await self._engine.store.query_leases(remove_server)
            await cancel_all([talking, *self._tasks])

    async def register(self) -> None:
        """Tell the other servers where this server is. The store renews the lease."""
        if self.address is None:
            return
        try:
            await self._engine.store.query_leases(register_server, self.address)
        except StoreError as error:
            logger.warning("error=<%s> | other servers cannot be told where this one is", text_with_notes(error))

    async def find_address(self, server_id: str) -> ServerAddress | None:
        """Return the address of another server, or None if it has no lease. Without the store, the last one counts."""
        asked_at = time.monotonic()
        while self._looked_at <= asked_at and (
            server_id not in self._servers or asked_at - self._looked_at > ADDRESS_LIFETIME
        ):
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            try:
                await asyncio.shield(self._looking)
            except StoreError:
                if server_id not in self._servers:
                    raise
                break
        return self._servers.get(server_id)

    async def _look(self) -> None:
        """Read the addresses of all servers; not more often than every half second, whatever ids clients make up."""
        await asyncio.sleep(self._looked_at + LOOK_INTERVAL - time.monotonic())
        started_at = time.monotonic()
        self._servers = await self._engine.store.query_leases(list_servers)
        self._looked_at = started_at

    def _shares_folder_with(self, address: ServerAddress) -> bool:
        """Return whether another server is a worker of the same `ferrule serve`."""
        own = "" if self.address is None else self.address.socket
        return bool(own) and os.path.dirname(own) == os.path.dirname(address.socket)

    async def find_route(self, server_id: str) -> PeerRoute:
        """Return how another server is reached. Raises ServerGone if it has no lease, ServerOutOfReach if it has no
        address that can be used from here.
        """
        address = await self.find_address(server_id)
        if address is None:
            raise ServerGone("it has ended")
        if self._shares_folder_with(address):
            return self._make_socket_route(address)
        is_elsewhere = address.machine != socket.gethostname()
        if not address.url or (is_elsewhere and urlsplit(address.url).hostname in LOOPBACK_HOSTS):
            raise ServerOutOfReach("it has no address that can be used from here")
        return PeerRoute(url=address.url, secret=self._fleet_secret or address.secret)

    def _make_socket_route(self, address: ServerAddress) -> PeerRoute:
        return PeerRoute(url=SOCKET_URL, socket=address.socket, secret=self._fleet_secret or address.secret)

    async def collect_metrics(self) -> Collection[str]:
        """Let the other workers write their metrics; returns the ids of those that live."""
        workers: dict[str, PeerRoute] = {}
        with suppress(StoreError):  # what they wrote last counts
            workers = await self._find_workers()
        await asyncio.gather(*(_post(each, [{"kind": "metrics"}]) for each in workers.values()))
        return workers

    async def _find_workers(self) -> dict[str, PeerRoute]:
        """Return how the other workers of this `ferrule serve` are reached, by their ids."""
        if self.address is None or not self.address.socket:
            return {}
        if time.monotonic() - self._looked_at > ADDRESS_LIFETIME:
            await self._look()
        return {
            each.server_id: self._make_socket_route(each)
            for each in self._servers.values()
            if each.server_id != self.server_id and self._shares_folder_with(each)
        }

    def forget(self, server_id: str) -> None:
        self._servers.pop(server_id, None)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the events of other servers; returns a function that ends the subscription."""
        self._listeners.add(listener)
        self._channel.send({"kind": "watch"})
        return lambda: self._listeners.discard(listener)

    async def cancel_run(self, run_id: str) -> bool:
        """Stop a run on any server. Returns False when no server has it in progress, or it did not stop in time."""
        is_running = partial(self._engine.store.is_locked, RUN_PREFIX + run_id)
        message = {"kind": "cancel_run", "run_id": run_id}
        return self._cancel_run(run_id) or await self._cancel_elsewhere(message, is_running)

    async def cancel_call(self, call_id: str) -> bool:
        """Stop a call on any server. Returns False when it runs on no server, or did not stop in time."""

        async def is_running() -> bool:
            record = await self._engine.store.get_call_record(call_id)
            return record is not None and record.status == "running"

        message = {"kind": "cancel_call", "call_id": call_id}
        return self._engine.cancel(call_id) or await self._cancel_elsewhere(message, is_running)

    async def _cancel_elsewhere(self, message: ChannelMessage, is_running: Callable[[], Awaitable[bool]]) -> bool:
        if not self._channel.is_available or not await is_running():
            return False
        self._channel.send(message)
        deadline = time.monotonic() + CANCEL_TIMEOUT
        while time.monotonic() < deadline:
            if not await is_running():
                return True
            await asyncio.sleep(CHECK_INTERVAL)
        return False

    def receive(self, message: ChannelMessage) -> None:
        match message:
            case {"kind": "watch"}:
                self._watched_until = time.monotonic() + WATCH_LIFETIME
                if self._unsubscribe is None:
                    self._unsubscribe = self._engine.subscribe(self._publish)
            case {"kind": "cancel_run", "run_id": str(run_id)}:
                self._cancel_run(run_id)
            case {"kind": "cancel_call", "call_id": str(call_id)}:
                self._engine.cancel(call_id)
            case {"kind": "circuit", "source": str(source), "tool_id": str(tool_id)}:
                self._open_circuit(source, tool_id, 0.0)
            case {"kind": "metrics"}:
                self._write_metrics()
            case {"kind": "news"}:
                self._on_news()
            case {"kind": "event"}:
                event = decode_event(message)
                if event is not None:
                    for listener in list(self._listeners):
                        listener(event)
                    self._on_news()

    # Circuits: told by messages, and stored for those who do not get the message

    def _tell_open_circuit(self, source: str, tool_id: str) -> None:
        async def store_and_tell() -> None:
            # In this order: a server that begins to listen after the message was sent finds what is stored.
            await self._engine.store.query_without_records(store_open_circuit, source, tool_id)
            self._channel.send({"kind": "circuit", "source": source, "tool_id": tool_id})

        if self._channel.is_available:
            self._start(store_and_tell())

    def _read_missed_circuits(self) -> None:
        """Read the circuits that were opened before this server listened."""

        async def read() -> None:
            for source, tool_id, age in await self._engine.store.query_without_records(list_open_circuits):
                self._open_circuit(source, tool_id, age)

        self._start(read())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        async def log_failure() -> None:
            try:
                await work
            except StoreError as error:
                logger.warning("error=<%s> | tools that cannot be reached are not shared with other servers", error)

        task = asyncio.ensure_future(log_failure())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _publish(self, event: ToolEngineEvent) -> None:
        if event.event_type in _APPROVAL_TYPES:  # clients read the request from the store
            self._channel.send({"kind": "news"})
        elif event.event_type not in _TYPES_OF_ONE_SERVER:
            self._channel.send(encode_event_message(event))


def encode_event_message(event: ToolEngineEvent) -> ChannelMessage:
    """Serialize an event for the other servers, with the fields that their visibility check needs."""
    description, principal = describe_event(event), event.principal
    if isinstance(description["error"], str):
        description["error"] = description["error"][:MAX_TEXT]
    return {
        "kind": "event",
        "description": description,
        "at": event.at,
        "action": event.data.get("action"),
        "principal": principal and {"kind": principal.kind, "name": principal.name, "tenant": principal.tenant},
    }


def decode_event(message: ChannelMessage) -> ToolEngineEvent | None:
    """Return an event of another server with the description for clients in its data, or None if unreadable."""
    try:
        description, principal = message["description"], message["principal"]
        return ToolEngineEvent(
            event_type=ToolEngineEventType(description["type"]),
            tool_name=description["tool_name"],
            call_id=description["call_id"],
            error=description["error"],
            error_type=description["error_type"],
            at=float(message["at"]),
            principal=None if principal is None else Principal(**principal),
            data={"description": description, "action": message["action"]},
        )
    except (KeyError, TypeError, ValueError, SetupError):
        return None


def describe_event(event: ToolEngineEvent) -> dict[str, Any]:
    if "description" in event.data:
        return dict(event.data["description"])
    described: dict[str, Any] = {
        "type": event.event_type.value,
        "at": event.timestamp.isoformat(),
        "tool_name": event.tool_name,
        "call_id": event.call_id,
        "error": event.error,
        "error_type": event.error_type,
        "principal": None if event.principal is None else event.principal.label,
    }
    described |= {name: event.data[name] for name in ("run_id", "agent", "model") if name in event.data}
    for value in event.data.values():
        match value:
            case ToolExecutionResult():
                described |= {"is_success": value.is_success, "execution_time": value.execution_time}
            case Progress():
                described |= {"fraction": value.fraction, "message": value.message}
            case AgentAnswer():
                described |= {"run_id": value.run_id, "state": value.state.value}
            case ApprovalRequest():
                described |= {"approval_id": value.approval_id, "state": value.state, "run_id": value.run_id}
                described["principal"] = value.principal
    return described
