"""How a full Python is kept from the rest of this machine: found out once, by trying it.

`bubblewrap` puts walls around it: namespaces in which there is no network, no other process and no file but those of
a Python. `limits` has no walls: resource limits, a filter of system calls, on newer Linux rules for files (Landlock),
and, where Ferrule itself is root, a user of its own. It is weaker, and says so.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ferrule.tools.python_executor.bubblewrap import FOLDER, wrapped
from ferrule.tools.python_executor.config import PythonExecutorConfig
from ferrule.tools.python_executor.interpreter import SYSTEM_FILES, SYSTEM_FOLDERS, Interpreter
from ferrule.tools.python_executor.plain_value import MOST
from ferrule.tools.python_executor.script import Script
from ferrule.tools.python_executor.seccomp import forbidding_program, is_known_here

logger = logging.getLogger("ferrule.tools")

_ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_FIRST_USER: Final = 1_900_000_000
_PATIENCE: Final = 10.0
_TINY: Final = "import statistics, socket\nstatistics.mean([41, 43])"
"""It loads what has not been loaded yet: whoever is nobody may find the way to it closed."""
_OPEN_FILES: Final = 128
INSTALL: Final = "apt-get install bubblewrap, dnf install bubblewrap, apk add bubblewrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """A way to run scripts that works on this machine."""

    kind: Literal["bubblewrap", "limits"]
    interpreter: Interpreter
    config: PythonExecutorConfig
    bubblewrap: str = ""
    has_landlock: bool = False

    @property
    def weakness(self) -> str:
        """What a script could do that it should not, in words; empty where nothing is known."""
        if self.kind == "bubblewrap":
            return ""
        could = [
            *(() if is_known_here() else ("reach the network and other programs",)),
            *(() if self.has_landlock else ("read and change files of this machine",)),
        ]
        return f"it could {' and '.join(could)}" if could else "nothing but limits and filters holds it"

    @property
    def has_keeper(self) -> bool:
        """Whether the first process is not the script's, and ends by itself when all others have."""
        return self.kind == "bubblewrap"

    @property
    def needs_folder(self) -> bool:
        """Whether a script is to be given a folder of this machine."""
        return self.kind == "limits"

    def arguments(self) -> list[str]:
        if self.kind == "limits":
            return self.interpreter.command
        files = self.config.files_mb * 1_000_000
        return wrapped(self.bubblewrap, self.interpreter, files=files, is_root=os.geteuid() == 0)

    def environment(self, folder: str) -> dict[str, str]:
        return {**_ENVIRONMENT, "HOME": folder, "TMPDIR": folder}

    def job(self, script: Script, folder: str, user: int | None) -> Callable[[int], bytes]:
        """What the runner is told, once it is known which process it is."""

        def told(process: int) -> bytes:
            walls: Literal["namespaces", "none"] = "namespaces" if self.kind == "bubblewrap" else "none"
            program = b64encode(forbidding_program(walls, process)).decode() if is_known_here() else None
            return json.dumps(
                {
                    "code": script.code,
                    "inputs": script.inputs,
                    "most": MOST,
                    "folder": folder,
                    "has_keeper": self.has_keeper,
                    "uid": user,
                    "limits": self._limits(),
                    "processes": self.config.processes,
                    "readable": self._readable() if self.has_landlock else None,
                    "program": program,
                }
            ).encode()

        return told

    def _limits(self) -> dict[str, int]:
        return {
            "AS": self.config.memory,
            "CPU": int(self.config.seconds) + 1,
            "FSIZE": self.config.files_mb * 1_000_000,
            "NOFILE": _OPEN_FILES,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }

    def _readable(self) -> list[str]:
        return [*SYSTEM_FOLDERS, *SYSTEM_FILES, *self.interpreter.places]


def own_user() -> int | None:
    """The number of a user that nobody else is, for one script; None where we cannot become another."""
    return _FIRST_USER + secrets.randbelow(100_000_000) if os.geteuid() == 0 else None


def find_isolation(config: PythonExecutorConfig) -> Isolation | str:
    """The best way that works and that the configuration allows; or what is needed for one, in words."""
    # A name alone is looked for where it will run; else what stands around our folder would be taken for its parts.
    found = shutil.which(config.interpreter or sys.executable, path=_ENVIRONMENT["PATH"])
    interpreter = Interpreter(path=os.path.abspath(found) if found is not None else config.interpreter)
    if config.isolation != "limits":
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            why_not = f"bubblewrap, which is not installed: {INSTALL}"
        else:
            walled = Isolation(kind="bubblewrap", interpreter=interpreter, config=config, bubblewrap=bubblewrap)
            why_not = _why_it_does_not_work(walled)
            if not why_not:
                return walled
            why_not = f"a bubblewrap that works here; it said: {why_not}"
        if config.isolation == "bubblewrap":
            return why_not
        logger.info("isolation=<limits> | scripts run without walls: that would need %s", why_not)
    limited = Isolation(kind="limits", interpreter=interpreter, config=config, has_landlock=_has_landlock())
    complaint = _why_it_does_not_work(limited)
    if not complaint:
        return limited
    return (
        f"a Python that can be run here: {interpreter.path!r} said: {complaint}. "
        'Name one with [tools.python_executor] interpreter = "/usr/bin/python3"'
    )


def _why_it_does_not_work(isolation: Isolation) -> str:
    """Runs a tiny script, in all the ways that a large one would be run; empty when it came to its end."""
    script, user = Script(code=_TINY), own_user()
    with tempfile.TemporaryDirectory() as folder:
        if user is not None:
            os.chown(folder, user, user)
        where = folder if isolation.needs_folder else FOLDER
        try:
            with subprocess.Popen(
                isolation.arguments(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=isolation.environment(where),
                start_new_session=True,
            ) as process:
                try:
                    _, told = process.communicate(isolation.job(script, where, user)(process.pid), _PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    return f"nothing within {_PATIENCE:g} seconds"
        except OSError as error:
            return str(error)
    return "" if _report(told) == {"result": 42} else (told.decode("utf-8", "replace").strip()[-300:] or "nothing")


def _report(told: bytes) -> Any:
    try:
        return json.loads(told)
    except ValueError:
        return None


def _has_landlock() -> bool:
    if sys.platform != "linux":
        return False
    version: int = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)
    return version > 0
