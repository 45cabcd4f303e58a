"""One worker process as its owner sees it: started, spoken to, ended with all its children.

A worker is a new Python, not a fork: no locks, threads or open connections of this process come along. It leads a
session of its own, so that it can be ended together with whatever a tool started in it. Two things tie it to this
process. Over a socket, its standard input, frames go to and fro. A pipe, its standard output, carries nothing: it
breaks when this process dies, however that happens, and then the worker ends itself. Into another pipe it writes a byte
for each call it begins: when it has died, that tells a call that may have done something from one it never saw.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

from ferrule.errors import SetupError, TransportFault
from ferrule.executors.function.reference import LOADING
from ferrule.executors.process_group import end_process_group, running_groups, signal_group
from ferrule.executors.process_tree import groups_that_left
from ferrule.executors.worker.channel import Channel
from ferrule.executors.worker.frames import Surroundings

_BOOTSTRAP = (
    "import sys; begun = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; del sys.argv[1:]; "
    "from ferrule.executors.worker.main import main; main(begun)"
)
_POLL_INTERVAL = 0.002


class WorkerProcess:
    """A process that runs one function at a time, and many one after another."""

    def __init__(self, *, max_frame: int) -> None:
        if (loading := LOADING.get()) is not None:
            raise SetupError(
                f"importing {loading} calls tools, and would do so again in every worker process: "
                'put those calls under `if __name__ == "__main__":`'
            )
        self.started_at = time.time()
        self._process, connection, self._lifeline, self._begun = _start()
        self.channel = Channel(connection, max_frame)
        self._left: set[int] = set()
        self.functions: set[int] = set()
        """The functions it has been told of."""
        self.modules: dict[str, str] = {}
        """The modules it has imported for them, with the digest of each."""
        self.surroundings: Surroundings | None = None
        self.call_began = 0.0
        """On the clock of `process_tree`."""
        self.calls = 0
        self.idle_since = 0.0
        """0 when it was started for the call it has."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def has_begun(self) -> bool:
        """Whether it has begun with the call it was sent; to be asked once after each call."""
        try:
            return bool(os.read(self._begun, 1))
        except BlockingIOError:
            return False

    def kill(self) -> None:
        """End it and all its children, now. `gone` waits for their last moments."""
        if not self.ended:  # once it was waited for, the number may be another process's
            for group in (self.pid, *running_groups(self.pid)):
                signal_group(group, signal.SIGKILL)

    def kill_call(self) -> None:
        """The same for a worker in the middle of a call: what that call started dies too, wherever it went."""
        if not self.ended:
            signal_group(self.pid, signal.SIGSTOP)  # the work ends now, and nothing is started while we look around
            self._left = groups_that_left(self.pid, since=self.call_began)
            for group in (self.pid, *self._left):
                signal_group(group, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until nothing is left of a killed worker, its session and what went into sessions of its own."""
        for leader in (self.pid, *self._left):
            await end_process_group(leader, grace=0.0)
        while not self._reap():
            await asyncio.sleep(_POLL_INTERVAL)

    def dismiss(self) -> None:
        """Ask it to end by itself, as soon as it is idle, with its clean-up handlers run."""
        self.channel.say_goodbye()

    def leave(self, *, deadline: float) -> bool:
        """Look after a dismissed worker: kill what is left of it when it has ended, or at the deadline."""
        if self.channel.is_open() and time.monotonic() < deadline:
            return False
        self.kill()
        return self._reap()

    def kill_and_wait(self) -> None:
        """For the end of this process, when no event loop runs any more."""
        self.kill()
        self._process.wait()
        self._close()

    def disown(self) -> None:
        """Forget a worker that belongs to the process this one was forked from."""
        self._process.returncode = 0
        self._close()

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"killed by signal {-code}" + "".join(f", {known.name}" for known in signal.Signals if known == -code)

    def _reap(self) -> bool:
        if self._process.poll() is None:
            return False
        self._close()
        return True

    def _close(self) -> None:
        self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            os.close(self._begun)
            self._lifeline = -1


def _start() -> tuple[subprocess.Popen[bytes], socket.socket, int, int]:
    ours, theirs = socket.socketpair()
    broken_when_we_die, lifeline = os.pipe()
    begun, begins = os.pipe()
    os.set_blocking(begun, False)
    try:
        process = subprocess.Popen(
            # -B: a file that is changed twice in a second would be taken for what was compiled in between.
            [
                sys.executable,
                "-B",
                "-c",
                _BOOTSTRAP,
                str(begins),
                *(entry for entry in sys.path if isinstance(entry, str)),
            ],
            stdin=theirs.fileno(),
            stdout=broken_when_we_die,
            stderr=None if sys.__stderr__ is not None else subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(begins,),
        )
    except OSError as error:
        ours.close()
        os.close(lifeline)
        os.close(begun)
        raise TransportFault(f"A worker process could not be started: {error}.") from error
    finally:
        theirs.close()
        os.close(broken_when_we_die)
        os.close(begins)
    return process, ours, lifeline, begun
