"""Four processes on one store, killed with `kill -9` at random moments, again and again.

Each process makes calls, asks for approvals, uses approvals that any process asked for, and starts and resumes runs.
What it was told to be done it writes into a pipe, which survives it. In the end everything is compared.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from chaos.scenario import Load, Outcome, append_line, duplicates, read_lines
from ferrule import Principal, ToolEngineConfig, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentAnswer, AgentState
from ferrule.errors import FerruleError, RunInProgress
from ferrule.store import ToolKnowledgeStore
from ferrule.testing import ScriptedModel

LEASE_TIMEOUT = 60.0
PROCESSES = 4
STEPS = 5
"""Calls in one run."""
CALLS_IN_A_ROW = 30
AGENT = Principal(kind="agent", name="chaos")
CONFIG = ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False, auto_reload=False)
ANYTHING_LEFT = 1_000_000


def kill_on_sqlite(load: Load) -> Outcome:
    return _kill_processes(load, f"sqlite:///{load.folder}/calls.db")


def kill_on_postgres(load: Load) -> Outcome:
    from tests.support.postgres import find_postgres_programs, run_postgres

    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    os.environ["XDG_STATE_HOME"] = str(load.folder / "state")
    with run_postgres() as server:
        return _kill_processes(load, server.url)


# ---- what each process does


def _make_tools(folder: Path) -> list[Any]:
    @tool
    async def note(text: str) -> str:
        """Write something down."""
        return text

    @tool(destructive=True)
    async def pay(order: str) -> str:
        """Pay for an order."""
        append_line(folder / "payments", order)
        return f"paid {order}"

    @tool
    async def step(run: str, number: int) -> str:
        """Do one step of a run."""
        append_line(folder / "steps", f"{run} {number}")
        return f"step {number} is done"

    return [note, pay, step]


def _make_model(run_id: str) -> ScriptedModel:
    """Calls `step` until it has seen the results of all steps."""

    def next_turn(request: Any) -> Any:
        done = sum(message["role"] == "tool" for message in request.messages)
        if done < STEPS:
            return {"name": "step", "arguments": {"run": run_id, "number": done}, "id": f"{run_id}_{done}"}
        return "All steps are done."

    return ScriptedModel([next_turn], loop=True)


class _Caller:
    """One of the processes."""

    def __init__(self, library: UnifiedToolLibrary, acknowledge: int, seed: int) -> None:
        self._library, self._pipe = library, acknowledge
        self._random = random.Random(seed)
        self._name = f"p{os.getpid()}-{seed}"
        self._numbers = count()

    async def work(self) -> None:
        while True:
            jobs = [self.make_calls, self.ask, self.use_approval, self.run, self.resume]
            (job,) = self._random.choices(jobs, [4, 2, 3, 1, 1])
            try:
                await job()
            except FerruleError as error:
                # Somebody else has the run, or decided first; or the database is busy.
                self._acknowledge("refused", type(error).__name__)

    async def make_calls(self) -> None:
        for _ in range(self._random.randrange(1, CALLS_IN_A_ROW)):
            text = self._new_name() + "x" * self._random.randrange(500)
            result = await self._library.execute_tool("note", None, {"text": text})
            if result.is_success:
                self._acknowledge("call", result.call_id, text)

    async def ask(self) -> None:
        order = self._new_name()
        result = await self._pay(order)
        if result.error_type == "approval_required":
            approval_id = result.metadata["approval_id"]
            await self._library.engine.approvals.record_decision(approval_id, True)
            self._acknowledge("approved", approval_id)

    async def use_approval(self) -> None:
        requests = await self._library.engine.approvals.list_requests(state="approved", limit=5)
        if requests:
            request = self._random.choice(requests)
            result = await self._pay(request.arguments["order"], request.approval_id)
            if result.is_success:
                self._acknowledge("call", result.call_id, request.arguments["order"])

    async def run(self) -> None:
        run_id = self._new_name()
        answer = await Agent(self._library, _make_model(run_id)).run("Do the steps", run_id=run_id)
        if answer.is_finished:
            self._acknowledge("run", run_id)

    async def resume(self) -> None:
        streams = await self._library.engine.store.list_streams("run:")
        if streams:
            run_id = self._random.choice(list(streams)[:10]).removeprefix("run:")
            if (await Agent(self._library, _make_model(run_id)).resume(run_id)).is_finished:
                self._acknowledge("run", run_id)

    async def _pay(self, order: str, approval_id: str | None = None) -> Any:
        context = ToolExecutionContext(principal=AGENT, approval_id=approval_id)
        return await self._library.execute_tool("pay", None, {"order": order}, context=context)

    def _new_name(self) -> str:
        return f"{self._name}-{next(self._numbers)}"

    def _acknowledge(self, *words: str) -> None:
        os.write(self._pipe, f"{' '.join(words)}\n".encode())


async def _call_until_killed(url: str, folder: Path, acknowledge: int, seed: int) -> None:
    async with UnifiedToolLibrary(CONFIG, store=url) as library:
        library.register(*_make_tools(folder))
        await _Caller(library, acknowledge, seed).work()


# ---- the parent


@dataclass(slots=True)
class _Acknowledged:
    """What the processes were told to be done, by kind."""

    calls: dict[str, str] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    approvals: set[str] = field(default_factory=set)
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, output: bytes) -> None:
        for line in output.decode().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # the process was killed before it had written the line
            kind, *words = line.split()
            if kind == "call":
                self.calls[words[0]] = words[1]
            elif kind == "run":
                self.runs.add(words[0])
            elif kind == "approved":
                self.approvals.add(words[0])
            elif kind == "refused":
                self.refused += 1
            else:
                self.errors.append(line.strip())


class _ProcessGroup:
    """The living processes and what they have written."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, int] = {}
        self._output: dict[int, bytearray] = {}
        self.acknowledged = _Acknowledged()
        self.crashes: list[str] = []

    def start(self, seed: int) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reading)
                asyncio.run(_call_until_killed(self._url, self._folder, writing, seed))
            except BaseException as error:
                os.write(writing, f"error {type(error).__name__}: {error}".replace("\n", " ").encode() + b"\n")
            os._exit(code)
        os.close(writing)
        self._pipes[pid], self._output[pid] = reading, bytearray()
        self._selector.register(reading, selectors.EVENT_READ, pid)

    def read(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(remaining):
                chunk = os.read(key.fd, 1 << 16)
                self._output[key.data] += chunk
                if not chunk:  # it ended by itself, which it never should
                    self._selector.unregister(key.fd)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        reading = self._pipes.pop(pid)
        while chunk := os.read(reading, 1 << 16):
            self._output[pid] += chunk
        if reading in self._selector.get_map():
            self._selector.unregister(reading)
        os.close(reading)
        os.waitpid(pid, 0)
        self.acknowledged.add(bytes(self._output.pop(pid)))

    def pids(self) -> list[int]:
        return list(self._pipes)


def _kill_processes(load: Load, url: str) -> Outcome:
    chance, outcome = random.Random(load.seed), Outcome()
    seeds = count(load.seed * 1000)
    asyncio.run(_open_once(url))  # everything is imported, and the tables exist, before the first fork
    group, kills, deadline = _ProcessGroup(url, load.folder), 0, time.monotonic() + load.seconds
    for _ in range(PROCESSES):
        group.start(next(seeds))
    while time.monotonic() < deadline or kills < PROCESSES:
        group.read(chance.choice([0.05, 0.2, 0.5, 1.0]) * chance.random())
        group.kill(chance.choice(group.pids()))
        kills += 1
        group.start(next(seeds))
    for pid in group.pids():
        group.kill(pid)
        kills += 1
    outcome.figures["kill -9"] = kills
    outcome.check_none(group.acknowledged.errors, "processes ended by themselves")
    asyncio.run(_verify(url, load.folder, group.acknowledged, outcome))
    return outcome


async def _open_once(url: str) -> None:
    async with UnifiedToolLibrary(CONFIG, store=url) as library:
        await library.engine.store.flush()


async def _verify(url: str, folder: Path, acknowledged: _Acknowledged, outcome: Outcome) -> None:
    async with UnifiedToolLibrary(CONFIG, store=url) as library:
        library.register(*_make_tools(folder))
        store = library.engine.store
        runs = [stream.removeprefix("run:") for stream in await store.list_streams("run:")]
        continued = 0
        for run_id in runs:
            answer = await _resume(library, run_id)
            continued += run_id not in acknowledged.runs
            outcome.check(answer.state is AgentState.FINISHED, f"the run {run_id} does not go on: {answer.reason}")
        outcome.check_none(acknowledged.runs - set(runs), "finished runs are lost")
        await _verify_calls(store, acknowledged, outcome)
        await _verify_approvals(library, folder, acknowledged, outcome)
    steps = read_lines(folder / "steps")
    outcome.check_none(duplicates(steps), "steps of runs were executed twice")
    outcome.figures |= {"runs": len(runs), "runs continued at the end": continued, "refused": acknowledged.refused}


async def _resume(library: UnifiedToolLibrary, run_id: str) -> AgentAnswer[str]:
    """Resume a run when the lease of its dead process has ended."""
    deadline = time.monotonic() + LEASE_TIMEOUT
    while True:
        try:
            return await Agent(library, _make_model(run_id)).resume(run_id)
        except RunInProgress:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def _verify_calls(store: ToolKnowledgeStore, acknowledged: _Acknowledged, outcome: Outcome) -> None:
    records = {record.record_id: record for record in await store.query_call_records(limit=ANYTHING_LEFT)}
    lost = [record_id for record_id in acknowledged.calls if record_id not in records]
    outcome.check_none(lost, "acknowledged calls have no record")
    wrong = [
        record_id
        for record_id, text in acknowledged.calls.items()
        if (record := records.get(record_id)) and (not record.is_success or text not in record.params.values())
    ]
    outcome.check_none(wrong, "acknowledged calls have a wrong record")
    texts = [record.params["text"] for record in records.values() if record.tool_name == "note"]
    outcome.check_none(duplicates(texts), "calls have two records")
    running = [record_id for record_id, record in records.items() if record.status == "running"]
    outcome.check_none(running, "calls of dead processes count as running")
    interrupted = sum(record.status == "interrupted" for record in records.values())
    outcome.figures |= {"acknowledged calls": len(acknowledged.calls), "lost": len(lost), "interrupted": interrupted}


async def _verify_approvals(
    library: UnifiedToolLibrary, folder: Path, acknowledged: _Acknowledged, outcome: Outcome
) -> None:
    requests = await library.engine.approvals.list_requests(limit=ANYTHING_LEFT)
    payments = read_lines(folder / "payments")
    outcome.check_none(duplicates(payments), "approvals were used twice")
    used = {request.arguments["order"] for request in requests if request.state == "used"}
    outcome.check_none(set(payments) - used, "payments were made without an approval")
    known = {request.approval_id for request in requests}
    outcome.check_none(acknowledged.approvals - known, "approvals are lost")
    records = {record.record_id for record in await library.engine.query_call_records(limit=ANYTHING_LEFT)}
    unrecorded = [request.approval_id for request in requests if request.used_by and request.used_by not in records]
    outcome.check_none(unrecorded, "approvals were used by calls without a record")
    outcome.figures |= {"acknowledged approvals": len(acknowledged.approvals), "payments": len(payments)}
