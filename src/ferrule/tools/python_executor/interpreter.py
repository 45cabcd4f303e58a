"""The Python that runs scripts, and what must be there for it to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

SYSTEM_FOLDERS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_PARTS: Final = ("bin", "lib", "lib64", "pyvenv.cfg")
_PATIENCE: Final = 10.0
_TELL_FOLDERS: Final = "import sys, json; print(json.dumps([sys.prefix, sys.exec_prefix, sys.base_prefix]))"


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python on this machine."""

    path: str

    @property
    def command(self) -> list[str]:
        """Runs the runner, apart from variables, folders and packages of the user."""
        return [self.path, "-I", "-B", "-c", _runner()]

    @cached_property
    def places(self) -> list[str]:
        """What it is made of outside of the system's folders. Other things may stand beside it: they are not its."""
        prefixes = dict.fromkeys([*self._prefixes(), *map(str, Path(self.path).resolve().parents[1:2])])
        found = [os.path.join(os.path.abspath(prefix), part) for prefix in prefixes for part in _PARTS]
        return [place for place in found if os.path.exists(place) and not _is_of_the_system(place)]

    def _prefixes(self) -> list[str]:
        if self.path == sys.executable:
            return [sys.prefix, sys.exec_prefix, sys.base_prefix]
        try:
            told = subprocess.run(
                [self.path, "-I", "-c", _TELL_FOLDERS], capture_output=True, timeout=_PATIENCE, check=True, env={}
            )
            return [str(folder) for folder in json.loads(told.stdout)]
        except (OSError, subprocess.SubprocessError, ValueError):
            return []  # it cannot be used, as will be found out


@cache
def _runner() -> str:
    return Path(__file__).with_name("runner.py").read_text(encoding="utf-8")


def _is_of_the_system(place: str) -> bool:
    return any(place == folder or place.startswith(f"{folder}/") for folder in SYSTEM_FOLDERS)
