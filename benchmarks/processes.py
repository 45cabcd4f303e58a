"""Child processes that end with us: nothing goes on in the background after Ctrl-C or a time-out."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 900.0

_SETTINGS = {
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "OTEL_SDK_DISABLED": "true",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    "FASTMCP_SHOW_SERVER_BANNER": "false",
    "PYTHONDONTWRITEBYTECODE": "",
}
"""Nobody shall talk to the network, trace for somebody else, or compile what was compiled before, while measured."""


class Failure(Exception):
    """A child process did not do what it was started for; the text says why."""


def run(command: list[str], timeout: float = LONGEST) -> str:
    """What the command printed; Failure with its last words when it failed."""
    with _started(command) as child:
        try:
            printed, said = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"took longer than {timeout:g} s") from None
    if child.returncode != 0:
        words = [line.strip() for line in said.splitlines() if line.strip()]
        raise Failure(words[-1] if words else f"ended with {child.returncode}")
    return printed


def cost(command: list[str]) -> dict[str, float]:
    """The seconds it takes to start a process, run it and see it end."""
    since = time.perf_counter()
    with _started(command) as child:
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - since
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            assert child.stderr is not None
            raise Failure(child.stderr.read().strip().rpartition("\n")[2])
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **_SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for us; we tell the child and all it started
    )
    with child:
        try:
            yield child
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
