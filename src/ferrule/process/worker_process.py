"""One worker process as its parent sees it: started, connected, ended with all its children.

A worker is a new Python, not a fork: it inherits no locks, threads or open connections. It leads a session of its own,
so that it can be ended together with whatever a tool started in it. Three connections tie it to this process:

- A socket, its standard input, carries the messages of `protocol.py`.
- A pipe, its standard output, carries nothing: it breaks when this process dies, however that happens, and then the
  worker ends itself.
- Another pipe, its standard error, carries what its functions print. `WorkerOutput` passes it on, up to a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from typing import Any

from ferrule.errors import ExecutionFailed, SetupError, TransportFault
from ferrule.process.function_reference import LOADING
from ferrule.process.groups import end_process_group, find_detached_groups, find_running_groups, signal_group
from ferrule.process.protocol import HEADER_SIZE, ProcessEnvironment, decode_from_worker, read_payload_length

_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; from ferrule.process.worker import main; main()"
_POLL_INTERVAL = 0.002
_READ_SIZE = 1 << 16

MAX_OUTPUT = 1_000_000
"""Bytes that one worker may print to our standard error within `OUTPUT_WINDOW` seconds."""
OUTPUT_WINDOW = 10.0
OUTPUT_TIMEOUT = 1.0
"""Seconds that the end of a call waits until what it printed has been written: our standard error may be blocked."""


class WorkerProcess:
    """A process that runs many functions, one after another."""

    def __init__(self, *, max_message: int) -> None:
        if (loading := LOADING.get()) is not None:
            raise SetupError(
                f"importing {loading} calls tools, and would do so again in every worker process: "
                'put those calls under `if __name__ == "__main__":`'
            )
        self.started_at = time.time()
        self._process, connection, self._lifeline = _spawn_worker()
        self.channel = WorkerChannel(connection, max_message)
        self.output = WorkerOutput(self._process)
        self._detached: set[int] = set()
        self.functions: set[int] = set()
        """The numbers of the functions it has."""
        self.modules: dict[str, str] = {}
        """The modules it has imported for them, with the digest of each."""
        self.environment: ProcessEnvironment | None = None
        self.call_started_at = 0.0
        """By `process_clock`."""
        self.calls = 0
        self.idle_since = 0.0
        """0 when it was started for its present call."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill it and all its children. `wait_until_gone` waits for them to disappear."""
        if not self.has_ended:  # after it was waited for, the number may belong to another process
            for group in (self.pid, *find_running_groups(self.pid)):
                signal_group(group, signal.SIGKILL)

    def kill_call(self) -> None:
        """Kill a worker in the middle of a call, with everything that the call started, in any session."""
        if not self.has_ended:
            signal_group(self.pid, signal.SIGSTOP)  # nothing more is done or started while we look for descendants
            while groups := find_detached_groups(self.pid, since=self.call_started_at) - self._detached:
                self._detached |= groups
                for group in groups:
                    signal_group(group, signal.SIGSTOP)
            for group in (self.pid, *self._detached):
                signal_group(group, signal.SIGKILL)

    async def wait_until_gone(self) -> None:
        """Wait until nothing is left of a killed worker, its session and the sessions its call made."""
        for leader in (self.pid, *self._detached):
            await end_process_group(leader, grace=0.0)
        await self.output.end_call()
        while not self._reap():
            await asyncio.sleep(_POLL_INTERVAL)

    def finish_exit(self, *, deadline: float) -> bool:
        """Return whether a stopping worker is gone; kills what is left of it when it has ended, or at the deadline."""
        if self.channel.is_open() and time.monotonic() < deadline:
            return False
        self.kill()
        return self._reap()

    def kill_and_wait(self) -> None:
        """Kill it and wait until it is gone: for the end of this process, when no event loop runs any more."""
        self.kill()
        self._process.wait()
        self._close()

    def detach_after_fork(self) -> None:
        """Forget, after a fork, a worker that belongs to the parent process."""
        self._process.returncode = 0
        self.output.close()
        self._close()

    def describe_end(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"killed by signal {-code}" + "".join(f", {number.name}" for number in signal.Signals if number == -code)

    def _reap(self) -> bool:
        if self._process.poll() is None:
            return False
        self._close()
        return True

    def _close(self) -> None:
        self.output.wait_for_remaining_output()
        self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _spawn_worker() -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a process. Returns also our ends of the socket and of the pipe that breaks when this process dies."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # What is only for the worker is closed here in any case, the rest when it cannot be started.
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        try:
            connection, stdin = socket.socketpair()
            ours.enter_context(connection)
            theirs.enter_context(stdin)
            stdout, lifeline = os.pipe()
            ours.callback(os.close, lifeline)
            theirs.callback(os.close, stdout)
            process = subprocess.Popen(
                # -B: a file that is changed twice within a second would be mistaken for its compiled first version.
                [sys.executable, "-B", "-c", _BOOTSTRAP, *path],
                stdin=stdin.fileno(),
                stdout=stdout,
                stderr=subprocess.PIPE if sys.__stderr__ is not None else subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise TransportFault(f"A worker process could not be started: {error}.") from error
        ours.pop_all()
    return process, connection, lifeline


class WorkerOutput:
    """What a worker prints, passed on to our standard error as it comes, up to a limit; the rest is counted.

    A thread reads all of it, so that a worker never waits for its output to be read. The thread belongs to no event
    loop, as the worker does, and ends when the worker and all that inherited its standard error have ended.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.tool_id = ""
        """The tool that the worker runs, or ran last."""
        self._pipe = process.stderr
        self._lock = threading.Lock()
        self._is_at_work = False
        """The thread has something that it has read, or is about to read."""
        self._window_start = 0.0
        self._allowed = MAX_OUTPUT
        self._dropped = 0
        self._ends_line = True
        """What was passed on last ended with a line."""
        if self._pipe is not None:
            threading.Thread(target=self._pass_on_all, name="ferrule-worker-output", daemon=True).start()

    async def end_call(self) -> None:
        """Wait until everything that was printed during a call has been passed on."""
        deadline = time.monotonic() + OUTPUT_TIMEOUT
        while self._is_behind() and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
        self._report_dropped()

    def wait_for_remaining_output(self) -> None:
        """Wait like `end_call` when the worker has ended, and perhaps no event loop runs any more."""
        deadline = time.monotonic() + OUTPUT_TIMEOUT
        while self._is_behind() and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        self._report_dropped()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _is_behind(self) -> bool:
        pipe = self._pipe
        if pipe is None:
            return False
        try:
            waiting = fcntl.ioctl(pipe.fileno(), termios.FIONREAD, b"\0" * 4)
        except (OSError, ValueError):  # it was closed just now
            return False
        return any(waiting) or self._is_at_work  # in this order: what has just left the pipe is at work

    def _pass_on_all(self) -> None:
        assert self._pipe is not None
        pipe, poll = self._pipe.fileno(), select.poll()
        poll.register(pipe, select.POLLIN)
        is_open = True
        while is_open:
            poll.poll()
            self._is_at_work = True
            chunk = os.read(pipe, _READ_SIZE)
            self._pass_on(chunk)
            is_open = bool(chunk)
            self._is_at_work = False
        self._report_dropped()
        self.close()

    def _pass_on(self, chunk: bytes) -> None:
        now = time.monotonic()
        if now - self._window_start >= OUTPUT_WINDOW:
            self._report_dropped()
            self._window_start, self._allowed = now, MAX_OUTPUT
        allowed = chunk[: self._allowed]
        if allowed:
            length = _write_to_stderr(allowed, OUTPUT_TIMEOUT)
            self._allowed = self._allowed - length if length == len(allowed) else 0  # 0: our output is blocked
            self._ends_line = allowed[:length].endswith(b"\n")
            allowed = allowed[:length]
        with self._lock:
            self._dropped += len(chunk) - len(allowed)

    def _report_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if not dropped:
            return
        note = (
            f"ferrule: {dropped:,} bytes that tool {self.tool_id!r} printed were dropped: a worker process may print "
            f"{MAX_OUTPUT:,} bytes in {OUTPUT_WINDOW:g} s. Let the tool print less, or write to a file.\n"
        )
        if _write_to_stderr((note if self._ends_line else f"\n{note}").encode(), timeout=0):
            self._ends_line = True
        else:
            with self._lock:
                self._dropped += dropped


def _write_to_stderr(data: bytes, timeout: float) -> int:
    """Return how many bytes were written: not all, if nobody reads our standard error for `timeout` seconds."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    length = 0
    try:
        while length < len(data) and poll.poll(timeout * 1000):
            length += os.write(2, data[length : length + select.PIPE_BUF])  # so much does not block now
    except OSError:  # it was closed
        return len(data)
    return length


class WorkerChannel:
    """Messages to and from one worker. EOFError means that the worker is gone.

    The socket belongs to no event loop; the running one only reports when the socket is ready. So a worker outlives the
    loop that started it. A worker that floods us with messages gets one read per iteration of the loop, so that
    everything else, timeouts included, goes on.
    """

    def __init__(self, connection: socket.socket, max_message: int) -> None:
        connection.setblocking(False)
        self._max_message = max_message
        self._socket = connection
        self._descriptor = connection.fileno()
        self._buffer = bytearray()

    async def send(self, encoded: bytes) -> None:
        remaining = memoryview(encoded)
        while remaining:
            try:
                remaining = remaining[self._socket.send(remaining) :]
            except BlockingIOError:
                await self._wait_until_ready(to_write=True)
            except OSError as error:
                raise EOFError("the worker is gone") from error

    async def receive(self) -> Any:
        while True:
            if (message := self._next_message()) is not None:
                return message
            await self._wait_until_ready(to_write=False)
            try:
                chunk = self._socket.recv(_READ_SIZE)
            except BlockingIOError:
                continue
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError("the worker is gone")
            self._buffer += chunk

    def is_open(self) -> bool:
        """Return whether the worker had not closed its end just now."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def shut_down(self) -> None:
        """Tell the worker that no more messages will come. An idle worker then runs its clean-up handlers and ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def _next_message(self) -> Any:
        buffer = self._buffer
        if len(buffer) < HEADER_SIZE:
            return None
        length = read_payload_length(buffer)
        if length > self._max_message:
            raise ExecutionFailed(
                f"A worker process was about to send {length:,} bytes, more than the {self._max_message:,} allowed, "
                "and was ended. Let the tool return less, or write to a file and return its path."
            )
        end = HEADER_SIZE + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view, view[HEADER_SIZE:end] as payload:
            message = decode_from_worker(payload)
        del buffer[:end]
        return message

    async def _wait_until_ready(self, *, to_write: bool) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        watch, unwatch = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
        watch(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            unwatch(self._descriptor)
