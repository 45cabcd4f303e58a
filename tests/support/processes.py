"""Programs in Python that tests start: processes of their own, made by one process that has loaded Ferrule.

What only a new interpreter does (take options before `-m`, read variables besides `PYTHONPATH`, load something for the
first time) needs `subprocess`.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 240.0
"""Seconds; the first program waits until everything is loaded, which takes minutes on a busy machine."""
_STARTING = threading.Lock()
_STARTED: list[socket.socket] = []


class PythonProcess:
    """`python ARGUMENTS`, started; with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        stdin: IO[Any],
        stdout: IO[Any],
        stderr: IO[Any],
        env: dict[str, str] | None = None,
    ) -> None:
        self.args = (sys.executable, *arguments)
        sys.audit("subprocess.Popen", sys.executable, self.args, cwd, env)  # the process is not a child of this one
        self.returncode: int | None = None
        self.connection, theirs = socket.socketpair()
        with theirs:
            files = [file.fileno() for file in (stdin, stdout, stderr)]
            socket.send_fds(_preloaded(), [b"\0"], [*files, theirs.fileno()])
        program = {"arguments": arguments, "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        self.connection.sendall(json.dumps(program).encode() + b"\n")
        try:
            self.pid = self._read_number(START_TIMEOUT)
        except BaseException:
            self.connection.close()
            raise
        weakref.finalize(self, _end_abandoned, self.connection, self.pid)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._read_number(timeout)
            self.connection.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its exit code is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self, timeout: float | None) -> int:
        """The number of the process comes first, and its exit code when it has ended."""
        if not select.select([self.connection], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        text = b""
        while not text.endswith(b"\n"):
            part = self.connection.recv(1)
            assert part, f"the process that starts {self.args} ended"
            text += part
        return int(text)


def _end_abandoned(connection: socket.socket, pid: int) -> None:
    """End a process that a failed test left, so that no later test fails because of its open socket."""
    if connection.fileno() >= 0:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        connection.close()


class TalkingProcess(PythonProcess):
    """`python ARGUMENTS`, started, which can be told lines and prints lines; its errors are those of the tests."""

    def __init__(self, *arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        self._input, self._output = open(our_output, "w", buffering=1), open(our_input)  # noqa: SIM115
        with open(their_input) as stdin, open(their_output) as stdout, open(2, closefd=False) as stderr:
            super().__init__(*arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    def tell(self, line: str) -> None:
        self._input.write(f"{line}\n")

    def read(self) -> str:
        """Wait for the next line; the text is empty when the process has ended."""
        return self._output.readline().rstrip("\n")

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.read()

    def read_rest(self) -> str:
        """Close the input of the process, and return all that it prints until it has ended."""
        self._input.close()
        return self._output.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the input, which ends a process that waits for it. Others are to be killed before."""
        with suppress(BrokenPipeError):
            self._input.close()
        self.wait(120)
        self._output.close()


def run_python(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, stdin: str = "", timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` for `python ARGUMENTS`, with everything it prints."""
    with _pipe_with(stdin) as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = PythonProcess(*arguments, cwd=cwd, env=env, stdin=given, stdout=output, stderr=errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(process.args, code, output.read().decode(), errors.read().decode())


@contextmanager
def forwarded_python(max_running: int = 100) -> Iterator[list[str]]:
    """A command that takes the place of `sys.executable` where another program starts processes.

    A process that is killed kills its program. Of more than `max_running`, the others wait.
    """
    slots = threading.Semaphore(max_running)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/socket"
        listener.bind(path)
        listener.listen(100)
        threading.Thread(target=_accept_programs, args=(listener, slots), daemon=True).start()
        yield [sys.executable, "-ISs", str(ROOT / "tests/support/forwarded_program.py"), path]
        listener.shutdown(socket.SHUT_RDWR)


def _accept_programs(listener: socket.socket, slots: threading.Semaphore) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down
            return
        threading.Thread(target=_run_program, args=(connection, slots), daemon=True).start()


def _run_program(connection: socket.socket, slots: threading.Semaphore) -> None:
    with slots, connection, ExitStack() as files:
        streams = [files.enter_context(open(number, "rb")) for number in socket.recv_fds(connection, 1, 3)[1]]
        with connection.makefile() as requests:
            program = json.loads(requests.readline())
        process = PythonProcess(
            *program["arguments"],
            cwd=program["cwd"],
            env=program["env"],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
        )
        files.close()
        select.select([connection, process.connection], [], [])  # until either has ended
        process.kill()
        with suppress(BrokenPipeError):  # its caller was killed
            connection.sendall(f"{process.wait()}\n".encode())


def _pipe_with(text: str) -> IO[bytes]:
    """A closed pipe with a text, which is short enough for its buffer."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(writing, "wb") as file:
        file.write(text.encode())
    return open(reading, "rb")


def _preloaded() -> socket.socket:
    """The way to the process that makes the others; it ends when this process closes it."""
    with _STARTING:
        if not _STARTED:
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "tests.support.preloaded_python", str(theirs.fileno())]
            with theirs:
                process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            atexit.register(_end, ours, process)
            _STARTED.append(ours)
        return _STARTED[0]


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    process.wait(60)
