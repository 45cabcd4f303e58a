"""The processes in which contestants are measured, and one virtual environment per peer.

A process is killed with all its children on Ctrl-C and on a timeout. Each peer has an environment of its own, so that
it gets the versions it requires and imports only its own dependencies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.contestants import Contestant

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "bench-venvs"
PROCESS_TIMEOUT = 900.0

# No network access, no tracing and no update checks during a measurement; bytecode is cached.
_ENVIRONMENT_VARIABLES = {
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "OTEL_SDK_DISABLED": "true",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    "FASTMCP_SHOW_SERVER_BANNER": "false",
    "PYTHONDONTWRITEBYTECODE": "",
}
_PRINT_VERSIONS = (
    "import importlib.metadata as m, json, sys; print(json.dumps({d: m.version(d) for d in sys.argv[1:]}))"
)


class ProcessError(Exception):
    """A process failed or timed out; the text gives the reason."""


def run(command: list[str], timeout: float = PROCESS_TIMEOUT) -> str:
    """Return what the command printed; ProcessError with the last line of its error output when it fails."""
    with _process(command) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"timed out after {timeout:g} s") from None
    if process.returncode != 0:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        raise ProcessError(lines[-1] if lines else f"exit status {process.returncode}")
    return output


def cost(
    command: list[str], folder: str | Path = ROOT, variables: Mapping[str, str] = MappingProxyType({})
) -> dict[str, float]:
    """The seconds from starting a process to its end."""
    start = time.perf_counter()
    with _process(command, folder, variables) as process:
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            assert process.stderr is not None
            raise ProcessError(process.stderr.read().strip().rpartition("\n")[2])
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}


@contextmanager
def _process(
    command: list[str], folder: str | Path = ROOT, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT_VARIABLES, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only this process, which then kills the whole group
    )
    with process:
        try:
            yield process
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python interpreter and the versions of the packages that are measured with it."""

    python: str
    versions: dict[str, str]


def environment_of(contestant: Contestant) -> Environment:
    """The contestant's environment, created if necessary; ProcessError when that fails."""
    if not contestant.distributions:
        packages = ("ferrule",) if contestant.module == "ferrule" else ("jsonschema-rs", "anyio")
        return _inspect(sys.executable, packages)
    python = str(ENVIRONMENTS / contestant.name / "bin" / "python")
    try:
        return _inspect(python, contestant.distributions)
    except (ProcessError, OSError):  # it does not exist, or its installation was interrupted
        uv = [sys.executable, "-m", "uv"]
        run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENTS / contestant.name)])
        # Certificates of the system: in an empty environment uv knows only those that it brings along.
        install = [*uv, "pip", "install", "--system-certs", "--quiet", "--compile-bytecode", "--upgrade"]
        run([*install, "--python", python, *contestant.distributions])
        return _inspect(python, contestant.distributions)


def _inspect(python: str, distributions: tuple[str, ...]) -> Environment:
    return Environment(python=python, versions=json.loads(run([python, "-c", _PRINT_VERSIONS, *distributions])))
