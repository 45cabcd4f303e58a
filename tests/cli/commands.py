"""Commands of `ferrule` as a person uses them: real processes, at a pseudo-terminal or not; and projects for them."""

import os
import pty
import signal
import subprocess
from pathlib import Path

from ferrule.cli.project import read_project
from ferrule.folder_trust import trust_folder
from tests.support.processes import PythonProcess, run_python
from tests.support.waiting import is_waiting, until_sync

LEAVES_A_MARK = "from pathlib import Path\n(Path(__file__).parent / 'was_run').write_text('')\n"


def ferrule(
    *arguments: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "ferrule", *arguments, cwd=cwd, stdin=stdin, env=env or environment(cwd))


def environment(cwd: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(cwd / "state"), "COLUMNS": "120"}


def project_with(folder: Path, **files: str) -> Path:
    (folder / "tools").mkdir()
    (folder / "ferrule.toml").write_text('[store]\nurl = "sqlite:///.ferrule/calls.db"\n')
    for name, text in files.items():
        (folder / "tools" / name.replace("_yaml", ".yaml").replace("_py", ".py")).write_text(text)
    return trusted(folder)


def trusted(folder: Path) -> Path:
    """The folder, trusted as by `ferrule trust`."""
    trust_folder(read_project(folder))
    return folder


class RunningCommand:
    """A command that was started, without a terminal."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        self._errors_path = cwd / "standard-error.txt"
        with open(os.devnull, "r+b") as nothing, self._errors_path.open("wb") as errors:
            self.process = PythonProcess(
                *("-m", "ferrule", *arguments),
                cwd=cwd,
                env=env or environment(cwd),
                stdin=nothing,
                stdout=nothing,
                stderr=errors,
            )

    @property
    def errors(self) -> str:
        """What was written to standard error until now."""
        return self._errors_path.read_text()

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C. Returns the exit code, and what was written to standard error."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(120)
        finally:
            self.process.kill()
        return code, self.errors


class Terminal:
    """A command at a pseudo-terminal, and all that it has shown."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None, kind: str = "dumb") -> None:
        self._ours, theirs = pty.openpty()
        with open(theirs, "r+b", buffering=0) as file:
            self.process = PythonProcess(
                *("-m", "ferrule", *arguments),
                cwd=cwd,
                env={**(env or environment(cwd)), "TERM": kind},
                stdin=file,
                stdout=file,
                stderr=file,
            )
        os.set_blocking(self._ours, False)
        self._shown, self._typed_at = b"", 0

    @property
    def output(self) -> str:
        return self._shown.decode(errors="replace")

    @property
    def reply(self) -> str:
        """What was shown since something was typed."""
        return self._shown[self._typed_at :].decode(errors="replace")

    def wait_for(self, text: str) -> None:
        until_sync(lambda: self._is_over() or text in self.reply, 120)
        assert text in self.reply, self.output

    def type(self, text: str) -> None:
        self._read()
        self._typed_at = len(self._shown)
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C while the command waits for a key: shortly before, only the next key would make it notice."""
        until_sync(lambda: self._is_over() or is_waiting(self.process.pid), 120)
        self.process.send_signal(signal.SIGINT)

    def answer(self, *lines: str) -> str:
        """Type each line after a question, which ends with a colon. Returns all that was shown until the end."""
        for line in lines:
            until_sync(lambda: self._is_over() or self.reply.endswith(": "), 120)
            self.type(line)
        self.end()
        return self.output

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        until_sync(self._is_over, 120)
        os.close(self._ours)
        return self.process.wait()

    def _is_over(self) -> bool:
        is_over = self.process.poll() is not None
        self._read()  # also what was shown immediately before the end
        return is_over

    def _read(self) -> None:
        try:
            while part := os.read(self._ours, 65_536):
                self._shown += part
        except OSError:  # nothing to read now, or the other end is closed
            pass


def show_in_terminal(*arguments: str, cwd: Path) -> str:
    """All that a command sends to a terminal with colours."""
    terminal = Terminal(*arguments, cwd=cwd, kind="xterm")
    terminal.end()
    return terminal.output
