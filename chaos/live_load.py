"""Real servers on one Postgres store, clients that pay orders on them, and the comparison of what both know in the end.

The tool `pay` is not idempotent, and its bucket has a limit that all servers share. It writes down every effect, and
when each of its calls begins and ends. A client repeats a request that failed with the same idempotency key, on any
server, until it gets an answer, or is told that the outcome is not known. One without keys sends each request once:
the calls of such clients go on while the database is away.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from tests.concurrency.fleet_process import count_most_running
from tests.support.ports import find_free_port

from chaos.scenario import Outcome, duplicates, read_lines
from ferrule.store import ToolKnowledgeStore

LIMIT = 2
LEASE_SECONDS = 2.0
START_TIMEOUT = RECOVERY_TIMEOUT = 180.0
REQUEST_TIMEOUT = 30.0
MAX_CONFLICTS = 5
"""How often a client asks again for a request that its server may still be working on."""
ANYTHING_LEFT = 1_000_000
CONFIG = """
[engine]
builtin_tools = false
tools_directory = "tools"

[store]
url = "{store}"

[agent]
model = "offline"

[limits]
bucket_limits = {{ pay = {limit} }}
shared = true
lease_seconds = {lease}
"""
TOOLS = '''
import asyncio, os, time
from ferrule import tool

def append(name, line):
    file = os.open(os.path.join({folder!r}, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (line + "\\n").encode())
    os.close(file)

@tool(bucket="pay", isolation="inline")
async def pay(order: str) -> str:
    """Pay for an order."""
    append("effects", order)
    append("calls.log", f"{{time.monotonic()}} {{os.getpid()}} 1")
    try:
        await asyncio.sleep(0.1)
    finally:
        append("calls.log", f"{{time.monotonic()}} {{os.getpid()}} -1")
    return f"paid {{order}}"
'''


class Host:
    """One server, which can be killed and started again at the same address."""

    def __init__(
        self,
        folder: Path,
        name: str,
        store: str,
        *,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """`prefix` is put before its command. Each host has a journal of its own, as a machine has."""
        self.folder, self.store, self._prefix, self._number = folder / name, store, list(prefix), count()
        (self.folder / "tools").mkdir(parents=True)
        (self.folder / "tools" / "pay.py").write_text(TOOLS.format(folder=str(folder)))
        config = CONFIG.format(store=store, limit=LIMIT, lease=LEASE_SECONDS)
        (self.folder / "ferrule.toml").write_text(config)
        self.environment = {"XDG_STATE_HOME": str(self.folder / "state"), **(environment or {})}
        self.url = f"http://127.0.0.1:{find_free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.pids: set[int] = set()

    def ferrule(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self._prefix, sys.executable, "-m", "ferrule", "--config", "ferrule.toml", *arguments]
        with (self.folder / f"{next(self._number)}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        self.process = self.ferrule("serve", "--port", self.url.rsplit(":", 1)[1])
        self.pids.add(self.process.pid)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def wait_until_ready(self) -> None:
        wait_until(self.is_ready, f"the server {self.folder.name} is not ready", START_TIMEOUT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def wait_until(condition: Callable[[], object], failure: str, seconds: float = RECOVERY_TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure} within {seconds:.0f} s")
        time.sleep(0.05)


@dataclass(slots=True)
class Answers:
    """What clients were told."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """The id of the call of each order that was paid."""
    unknown: list[str] = field(default_factory=list)
    """Orders for which the last answer was that the outcome is not known."""
    failed_requests: int = 0
    repeated: list[str] = field(default_factory=list)
    """Orders whose repetition was answered as another call."""


class LiveClient(threading.Thread):
    """Pays one order after the other, until it is stopped."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        answers: Answers,
        *,
        has_keys: bool = True,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`urls` are tried in turn. `prepare` is called in the thread of the client first."""
        super().__init__(name=name, daemon=True)
        self._has_keys = has_keys
        self._urls, self._answers, self._prepare, self._is_stopped = urls, answers, prepare, threading.Event()

    def stop(self) -> None:
        self._is_stopped.set()

    def run(self) -> None:
        self._prepare()
        chance, numbers = random.Random(self.name), count()
        with httpx.Client(timeout=REQUEST_TIMEOUT, headers={"Connection": "close"}) as client:
            while not self._is_stopped.is_set():
                order = f"{self.name}-{next(numbers)}"
                self._pay(client, order)
                if self._has_keys and order in self._answers.acknowledged and chance.random() < 0.2:
                    self._repeat(client, order)

    def _pay(self, client: httpx.Client, order: str) -> None:
        conflicts = 0
        for attempt in count():
            response = self._send(client, order, attempt)
            if response is not None and response.status_code == 200 and (result := response.json())["is_success"]:
                self._answers.acknowledged[order] = result["call_id"]
                return
            conflicts += response is not None and response.status_code == 409
            if conflicts >= MAX_CONFLICTS or not self._has_keys or self._is_stopped.is_set():
                self._answers.unknown.append(order)
                return
            self._answers.failed_requests += 1
            self._is_stopped.wait(0.1)

    def _repeat(self, client: httpx.Client, order: str) -> None:
        """An answer that got lost: the client sends the request again, and another server gets it."""
        response = self._send(client, order, 1)
        if response is None or response.status_code != 200:
            return
        if response.json()["call_id"] != self._answers.acknowledged[order]:
            self._answers.repeated.append(order)

    def _send(self, client: httpx.Client, order: str, attempt: int) -> httpx.Response | None:
        url = f"{self._urls[attempt % len(self._urls)]}/v1/tools/pay/call"
        headers = {"Idempotency-Key": order} if self._has_keys else {}
        with suppress(httpx.TransportError):
            return client.post(url, json={"arguments": {"order": order}}, headers=headers)
        return None


class LiveLoad:
    """Clients of a fleet, from the beginning of the block to its end."""

    def __init__(self, clients: Sequence[LiveClient], answers: Answers) -> None:
        self.clients, self.answers = clients, answers

    def __enter__(self) -> LiveLoad:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.join(REQUEST_TIMEOUT + 10)

    def wait_for_answers(self, failure: str, number: int = 1) -> None:
        """Until each client has got so many more answers."""
        goals = {client.name: self._count(client.name) + number for client in self.clients}
        wait_until(lambda: all(self._count(name) >= goal for name, goal in goals.items()), failure)

    def _count(self, name: str) -> int:
        return sum(order.startswith(f"{name}-") for order in list(self.answers.acknowledged))


def compare(hosts: Sequence[Host], answers: Answers, outcome: Outcome) -> None:
    """Nothing acknowledged is lost, nothing was paid twice, the limit held. The hosts have been killed."""
    folder, killed = hosts[0].folder.parent, {pid for host in hosts for pid in host.pids}
    records = asyncio.run(_read_records(hosts))
    effects, most = read_lines(folder / "effects"), count_most_running(folder / "calls.log", killed)
    lost = {order for order, call_id in answers.acknowledged.items() if records.get(call_id) != "success"}
    outcome.check_none(lost, "acknowledged calls have no record of their success")
    outcome.check_none(set(answers.acknowledged) - set(effects), "acknowledged orders were not paid")
    outcome.check_none(duplicates(effects), "orders were paid twice")
    outcome.check_none(answers.repeated, "repeated requests were executed again")
    outcome.check(most <= LIMIT, f"{most} calls ran at the same time, the limit is {LIMIT}")
    outcome.figures |= {
        "acknowledged": len(answers.acknowledged),
        "lost": len(lost),
        "paid twice": len(duplicates(effects)),
        "outcome not known": len(answers.unknown),
        "limit": LIMIT,
        "most at the same time": most,
        "failed requests": answers.failed_requests,
    }


async def _read_records(hosts: Sequence[Host]) -> dict[str, Any]:
    """The status of each call. What a host has left in its journal is imported first, as the next start there does."""
    records: dict[str, Any] = {}
    for host in hosts:
        os.environ["XDG_STATE_HOME"] = host.environment["XDG_STATE_HOME"]
        async with ToolKnowledgeStore(host.store) as store:
            records = {
                record.record_id: record.status for record in await store.query_call_records(limit=ANYTHING_LEFT)
            }
    return records
