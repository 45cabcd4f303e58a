"""Messages between the processes that use one Postgres store, by LISTEN and NOTIFY. Other stores have no channel.

A message reaches the processes that listen at that moment, usually within a millisecond; it is not stored. What must
not be lost is in the tables, and messages only tell where to look sooner.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias
from uuid import uuid4

from ferrule.errors import StoreError
from ferrule.store.database import StoreDatabase
from ferrule.store.tables import sa

logger = logging.getLogger("ferrule.store")

ChannelMessage: TypeAlias = dict[str, Any]

MAX_PAYLOAD: Final = 7_900
"""Bytes of one notification; Postgres accepts fewer than 8,000."""
MAX_QUEUED: Final = 1_000
LISTEN_SECONDS: Final = 1.0
"""How long the listening thread waits before it checks whether it should end."""
RETRY_SECONDS: Final = 1.0


class StoreChannel:
    """Sends messages to the other processes of a store and receives theirs. It belongs to one event loop."""

    def __init__(
        self,
        database: StoreDatabase,
        receive: Callable[[ChannelMessage], None],
        on_listening: Callable[[], None],
        *,
        is_available: bool,
    ) -> None:
        """Call `on_listening` whenever messages begin to arrive: earlier messages were missed."""
        self._database, self._receive, self.is_available = database, receive, is_available
        self._on_listening = on_listening
        self._sender = uuid4().hex
        self._queue: asyncio.Queue[ChannelMessage] = asyncio.Queue(MAX_QUEUED)
        self._is_stopped = threading.Event()
        self.is_listening = threading.Event()

    def send(self, message: ChannelMessage) -> None:
        """Send a message soon. A message that is too long, or finds the queue full, is not sent."""
        if not self.is_available:
            return
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            logger.debug("the queue of messages to other servers is full: one was dropped")

    async def run(self) -> None:
        """Send and receive until cancelled."""
        if not self.is_available:
            return
        self._is_stopped.clear()
        thread = threading.Thread(
            target=self._listen, args=(asyncio.get_running_loop(),), name="ferrule-channel", daemon=True
        )
        thread.start()
        try:
            await self._send_queued()
        finally:
            self._is_stopped.set()
            await asyncio.shield(asyncio.to_thread(thread.join))

    async def _send_queued(self) -> None:
        while True:
            messages = [await self._queue.get()]
            while not self._queue.empty():
                messages.append(self._queue.get_nowait())
            try:
                await asyncio.to_thread(self._notify, messages)
            except StoreError as error:  # they would be late in any case
                logger.warning("messages=<%d>, error=<%s> | not sent to other servers", len(messages), error)

    def _notify(self, messages: Sequence[ChannelMessage]) -> None:
        with self._database.write() as connection:
            name = _channel_name(str(connection.exec_driver_sql("SELECT current_schema()").scalar_one()))
            for payload in pack_messages(self._sender, messages):
                connection.execute(sa.text("SELECT pg_notify(:name, :payload)"), {"name": name, "payload": payload})

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._is_stopped.is_set():
            try:
                self._receive_notifications(loop)
            except (StoreError, OSError) as error:
                self.is_listening.clear()
                logger.warning("error=<%s> | messages of other servers do not arrive, connecting again", error)
                self._is_stopped.wait(RETRY_SECONDS)
            except RuntimeError:  # the event loop is closed
                return

    def _receive_notifications(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._database.raise_as_store_error():
            connection = self._database.connect_outside_pool()
            try:
                (schema,) = connection.execute("SELECT current_schema()").fetchone()
                connection.execute(f'LISTEN "{_channel_name(schema)}"')
                self.is_listening.set()
                loop.call_soon_threadsafe(self._on_listening)
                while not self._is_stopped.is_set():
                    for notification in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                        self._deliver(notification.payload, loop)
            finally:
                connection.close()

    def _deliver(self, payload: str, loop: asyncio.AbstractEventLoop) -> None:
        try:
            sender, messages = json.loads(payload)
            is_own = sender == self._sender
            readable = [message for message in messages if isinstance(message, dict)]
        except (ValueError, TypeError):  # not from Ferrule
            return
        for message in () if is_own else readable:
            loop.call_soon_threadsafe(self._receive, message)


def pack_messages(sender: str, messages: Sequence[ChannelMessage]) -> list[str]:
    """Pack messages into as few notifications as possible. A message that fits into none is left out."""
    payloads: list[str] = []
    packed: list[ChannelMessage] = []
    for message in messages:
        if packed and len(_encode(sender, [*packed, message])) > MAX_PAYLOAD:
            payloads.append(_encode(sender, packed))
            packed = []
        if len(_encode(sender, [message])) <= MAX_PAYLOAD:
            packed.append(message)
    return [*payloads, _encode(sender, packed)] if packed else payloads


def _encode(sender: str, messages: Sequence[ChannelMessage]) -> str:
    # ASCII: the number of bytes is the number of characters, and no text can break the notification. Postgres rejects
    # NUL characters, which JSON writes as an escape.
    return json.dumps([sender, list(messages)], separators=(",", ":"))


def _channel_name(schema: str) -> str:
    """Return the name of the channel of one schema: a database may have several stores."""
    return f"ferrule_{sha256(schema.encode()).hexdigest()[:16]}"
