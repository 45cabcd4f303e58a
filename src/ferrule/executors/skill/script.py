"""Scripts of a skill: which may be run, and by what."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from os import X_OK, access

from ferrule.errors import ExecutionFailed, Retry
from ferrule.executors.skill.folder import SCRIPTS, SkillFolder, parts_of


def script_command(folder: SkillFolder, path: str, arguments: Sequence[str]) -> list[str]:
    """The program and its arguments that run a script of the skill."""
    parts = parts_of(path)
    if parts[0] != SCRIPTS or len(parts) == 1:
        scripts = [file.path for file in folder.files() if file.path.startswith(f"{SCRIPTS}/")]
        raise Retry(
            f"{path!r} is not a script: only files in {SCRIPTS}/ can be run. They are: {', '.join(scripts) or 'none'}."
        )
    with folder.open(path) as file:
        first_line = file.readline(256)
    script = str(folder.path.joinpath(*parts))
    return [*_interpreter(script, first_line), script, *arguments]


def _interpreter(script: str, first_line: bytes) -> list[str]:
    """The words before the script's own path; none for one that the system can run by itself."""
    suffix = script.rpartition(".")[2].lower()
    if suffix == "py":
        return [sys.executable]
    if suffix == "sh":
        # Skills often arrive without their executable bits, and what is written for bash fails elsewhere.
        return ["bash" if b"bash" in first_line and shutil.which("bash") else "sh"]
    if not first_line.startswith(b"#!"):
        raise ExecutionFailed(
            f"{script!r} cannot be run: nothing tells how. Name it .py or .sh, or begin it with a line such as "
            "'#!/usr/bin/env node'."
        )
    if not access(script, X_OK):
        raise ExecutionFailed(f"{script!r} is not executable. Run: chmod +x {script}")
    return []
