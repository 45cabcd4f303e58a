"""Ending a process together with everything it started.

A process started with `start_new_session=True` leads a session and a group of its own, and what it starts belongs to
both. Some children make groups of their own (GNU `timeout`, the jobs of a shell) but stay in the session: on Linux
those groups are found and ended too.

A child that was given a session of its own, as browsers and daemons are, is reached by no signal to a group. On Linux
such children are found in two ways (on other systems not at all):

- By their ancestors (`find_detached_groups`): Linux records which process started which. The parent of a daemon has
  ended, so its record is lost, unless an ancestor is a *subreaper*, as worker processes are (`become_subreaper`).
- By a mark in the environment that they inherit (`mark_environment`, `end_process_tree`). A process that was started
  with an empty environment has none; it is found only while its parent lives.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import NamedTuple, cast

from ferrule.core.aio import wait_at_most

logger = logging.getLogger("ferrule.process")

GRACE_SECONDS = 0.5
KILL_TIMEOUT = 5.0
"""Seconds a killed process may take to disappear: the kernel may have to finish a write to a disk first."""
DRAIN_TIMEOUT = 0.2
"""Seconds to go on reading when all processes have ended: what they wrote is in the pipes already."""
MAX_LINE = 65_536
"""Bytes of a line; a longer one is cut into several."""

MARK_VARIABLE = "FERRULE_PROCESS"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


async def end_process_group(leader: int, grace: float = GRACE_SECONDS) -> None:
    """End every process of a session: by SIGTERM, and those that still run after `grace` seconds by SIGKILL.

    When this returns, nothing of it runs any more. The number of a session is that of its first process, the leader,
    which its parent must still wait for, as for any child.
    """
    if await _signal_until_ended(leader, signal.SIGTERM, within=grace):
        return
    if not await _signal_until_ended(leader, signal.SIGKILL, within=KILL_TIMEOUT):
        logger.warning("session=<%d> | still running %s s after SIGKILL", leader, KILL_TIMEOUT)


def mark_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return an environment for a process that `end_process_tree` shall end, and the mark in it."""
    mark = f"{MARK_VARIABLE}={os.urandom(12).hex()}"
    return {**environment, MARK_VARIABLE: mark.partition("=")[2]}, mark


async def end_process_tree(
    leader: int, mark: str, grace: float = GRACE_SECONDS, *, earlier_tree: Mapping[int, float] | None = None
) -> None:
    """End a session like `end_process_group`, and all that was started from it in other sessions, daemons included.

    `earlier_tree`: what `find_process_tree` found earlier, for a leader that may have ended since.
    """
    started = time.monotonic()
    tree = {**(earlier_tree or {}), **await asyncio.to_thread(find_process_tree, leader, mark)}
    for number in tree:
        _signal_process(number, signal.SIGTERM)
    await end_process_group(leader, grace)
    while remaining := await asyncio.to_thread(_find_remaining, tree, mark):
        seconds = time.monotonic() - started
        if seconds >= grace + KILL_TIMEOUT:
            logger.warning("processes=<%s> | still running %s s after SIGKILL", remaining, KILL_TIMEOUT)
            return
        for number in remaining if seconds >= grace else remaining - tree.keys():
            _signal_process(number, signal.SIGKILL)
        await asyncio.sleep(0.01)


def become_subreaper() -> None:
    """Make this process the parent of all its descendants whose parents have ended, where the system allows it."""
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends, where the system allows it.

    For a process whose work does not notice that its pipes are closed.
    """
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _set_process_option(option: int, value: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class WatchedProcess(asyncio.SubprocessProtocol):
    """The state of one process in a session of its own, and what it has written to each descriptor, up to a limit."""

    def __init__(self, max_output: Mapping[int, int]) -> None:
        self.transport: asyncio.SubprocessTransport | None = None
        """Set when the process has started."""
        self.exit_code = -signal.SIGKILL
        self.reads_stdin = True
        """Its standard input is still open."""
        self.finished = asyncio.Event()
        """It has ended, or must be ended."""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """It has ended, and all its pipes are closed."""
        self._max_output = max_output
        self.output = {descriptor: bytearray() for descriptor in max_output}
        self.exceeded_descriptor: int | None = None
        """Where it wrote more than the limit, if that is why it must be ended."""

    async def start(
        self, *arguments: str, stdin: bytes | None, directory: str | None, environment: Mapping[str, str]
    ) -> None:
        """Start a program in a session of its own. Raises OSError if that fails."""
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *arguments,
            stdin=nothing if stdin is None else pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        if stdin is not None:
            writer = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            writer.write(stdin)
            writer.close()  # when all is written

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is another class

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._max_output[fd] - len(self.output[fd])
        self.output[fd] += data[:room]
        if len(data) > room and not self.finished.is_set():
            self.exceeded_descriptor = fd
            self.finished.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.reads_stdin = False

    def process_exited(self) -> None:
        code = self.transport.get_returncode() if self.transport is not None else None
        self.exit_code = self.exit_code if code is None else code
        self.exited.set()
        self.finished.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    async def close_pipes(self, transport: asyncio.SubprocessTransport) -> None:
        """Wait for the process, which was ended; read the rest of what it wrote, and close its pipes."""
        await wait_at_most(self.exited, KILL_TIMEOUT)
        await wait_at_most(self.closed, DRAIN_TIMEOUT)
        stdin = cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0))
        if stdin is not None and self.reads_stdin:
            stdin.abort()  # closing alone would wait until the process has read everything
        transport.close()
        await wait_at_most(self.closed, KILL_TIMEOUT)


class LineReader:
    """Cuts what a process writes into lines of text, up to a limit, and says how many more bytes there were."""

    def __init__(
        self, handle: Callable[[str], None], *, max_lines: float = math.inf, max_bytes: float = math.inf
    ) -> None:
        self._handle = handle
        self._lines_allowed, self._bytes_allowed = max_lines, max_bytes
        self._partial = b""
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        if not self._lines_allowed or len(data) > self._bytes_allowed:
            # Also the first part of its first line: half of a secret could not be recognized.
            self._bytes_allowed = 0
            self._dropped += len(data) + len(self._partial)
            self._partial = b""
            return
        self._bytes_allowed -= len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._handle_line(line)
        if len(self._partial) > MAX_LINE:
            self._handle_rest()

    def end(self) -> None:
        self._handle_rest()
        if self._dropped:
            self._handle(f"[{self._dropped:,} more bytes, which are not logged]")

    def _handle_rest(self) -> None:
        if self._partial:
            self._handle_line(self._partial)
            self._partial = b""

    def _handle_line(self, line: bytes) -> None:
        if self._lines_allowed:
            self._lines_allowed -= 1
            self._handle(line.decode("utf-8", "replace").rstrip("\r"))
        else:
            self._dropped += len(line) + 1


def find_running_groups(leader: int) -> set[int]:
    """Return the groups of a session with running processes; on other systems than Linux only the first group."""
    if not os.path.isdir("/proc/self"):
        return {leader} if signal_group(leader, 0) else set()
    groups = set()
    for number in find_session_processes(leader):
        # A zombie has ended, but its parent has not waited for it. In a container that may never happen.
        with suppress(OSError), open(f"/proc/{number}/stat", "rb") as file:  # OSError: it has just ended
            if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                groups.add(os.getpgid(number))
    return {group for group in groups if signal_group(group, 0)}


def find_session_processes(leader: int) -> set[int]:
    """Return the processes of a session, those that have ended and were not waited for included; only on Linux."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_in_session(int(name), leader)}


def signal_group(group: int, kind: int) -> bool:
    """Return whether any process got the signal."""
    try:
        os.killpg(group, kind)
    except (ProcessLookupError, PermissionError):  # macOS says "not permitted" when all are zombies
        return False
    return True


async def _signal_until_ended(leader: int, kind: signal.Signals, *, within: float) -> bool:
    deadline = time.monotonic() + within
    delay = 0.001
    signalled: set[int] = set()
    # A process that was started during the first look, by a parent that has ended since, is seen by the second.
    while groups := find_running_groups(leader) or find_running_groups(leader):
        # New groups may appear at any time. SIGTERM is sent to each only once, so that it does not interrupt its
        # cleanup.
        for group in groups if kind == signal.SIGKILL else groups - signalled:
            signal_group(group, kind)
        signalled |= groups
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(min(delay, max(deadline - time.monotonic(), 0)))
        delay = min(2 * delay, 0.02)
    return True


class _RunningProcess(NamedTuple):
    parent: int
    group: int
    started_at: float


def process_clock() -> float:
    """Return the time on the clock in which Linux records the start of a process."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def find_detached_groups(ancestor: int, *, since: float) -> set[int]:
    """Return the groups, other than its own, of all that a process and its descendants have started since a time."""
    processes = _list_processes()
    descendants = [processes[number] for number in _find_descendants(ancestor, processes)]
    return {process.group for process in descendants if process.group != ancestor and process.started_at >= since}


def _find_descendants(
    ancestor: int, processes: Mapping[int, _RunningProcess], marked: Set[int] = frozenset()
) -> set[int]:
    """Return the descendants of a process, and the marked processes with theirs."""
    descendants, pending = set[int](), [ancestor, *marked]
    while pending:
        parent = pending.pop()
        children = {number for number, process in processes.items() if process.parent == parent} - descendants
        descendants |= children
        pending += children
    return descendants | marked


def _list_processes() -> dict[int, _RunningProcess]:
    if not os.path.isdir("/proc/self"):
        return {}
    tick = 1 / os.sysconf("SC_CLK_TCK")
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] in (b"Z", b"X"):  # it has ended, and has no children any more
                continue
            # The start is rounded down to a clock tick; take the end of the tick, so that no process seems too old.
            processes[int(name)] = _RunningProcess(int(fields[1]), int(fields[2]), (int(fields[19]) + 1) * tick)
    return processes


def find_process_tree(ancestor: int, mark: str) -> dict[int, float]:
    """Return numbers and starts of a process's descendants outside its session, and of processes with a mark."""
    processes = _list_processes()
    tree = _find_descendants(ancestor, processes, _find_marked(mark, processes))
    return {number: processes[number].started_at for number in tree if not _is_in_session(number, ancestor)}


def _find_remaining(tree: Mapping[int, float], mark: str) -> set[int]:
    processes = _list_processes()
    remaining = {number for number, process in processes.items() if tree.get(number) == process.started_at}
    return remaining | _find_marked(mark, processes)


def _find_marked(mark: str, processes: Iterable[int]) -> set[int]:
    marked, encoded = set(), mark.encode()
    for number in processes:
        # OSError: it has just ended, or belongs to another user.
        with suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:
            if encoded in file.read().split(b"\0"):
                marked.add(number)
    return marked


def _is_in_session(number: int, leader: int) -> bool:
    try:
        return os.getsid(number) == leader
    except OSError:
        return False


def _signal_process(number: int, kind: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(number, kind)
