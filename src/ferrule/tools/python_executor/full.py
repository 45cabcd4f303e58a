"""Running a script in a full CPython, in a process that is watched and ended with all it has started."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from ferrule.content import is_deep, plain_json
from ferrule.executors.process_group import to_the_end
from ferrule.tools.python_executor.bubblewrap import FOLDER
from ferrule.tools.python_executor.config import PythonExecutorConfig
from ferrule.tools.python_executor.isolation import Isolation, own_user
from ferrule.tools.python_executor.plain_value import DEEPEST, MOST
from ferrule.tools.python_executor.process import Command, Ended, run_process
from ferrule.tools.python_executor.script import Failure, HowItFailed, Line, Ran, Script

logger = logging.getLogger("ferrule.tools")

_OUT_OF_TIME: Final = (signal.SIGXCPU,)
_REPORTED: Final = 2 * MOST + 100_000
"""Bytes of a report: letters may be written as codes in it."""


async def run_in_full_python(script: Script, config: PythonExecutorConfig, isolation: Isolation) -> Ran:
    """Run a script to its end. Its failures are in what it returns."""
    user = own_user()
    async with _folder(isolation, user) as folder:
        ended = await run_process(
            Command(
                arguments=isolation.arguments(),
                environment=isolation.environment(folder),
                stdin=isolation.job(script, folder, user),
                seconds=config.seconds,
                memory=config.memory,
                printed=config.printed_bytes,
                reported=_REPORTED,
                has_keeper=isolation.has_keeper,
            )
        )
    return _ran(ended)


@asynccontextmanager
async def _folder(isolation: Isolation, user: int | None) -> AsyncIterator[str]:
    """Where the script stands: empty, its own, and gone afterwards."""
    if not isolation.needs_folder:
        yield FOLDER
        return
    folder = tempfile.mkdtemp(prefix="ferrule-")
    try:
        if user is not None:
            os.chown(folder, user, user)
        yield folder
    finally:
        await to_the_end(_remove(folder))


async def _remove(folder: str) -> None:
    """With programs that stumble over no depth, and over no folder that was closed behind them."""
    opened = () if os.geteuid() == 0 else (("chmod", "-R", "u+rwx", folder),)
    for command in (*opened, ("rm", "-rf", "--", folder)):
        nothing = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=nothing, stderr=nothing)
        await process.wait()
    if os.path.exists(folder):
        logger.warning("folder=<%s> | what a script left there could not be removed", folder)


def _ran(ended: Ended) -> Ran:
    printed = ended.printed.decode("utf-8", "replace")
    if ended.stopped is not None:
        message = "it is larger than what can be handed on." if ended.stopped == "result" else ""
        return Ran(printed=printed, failure=Failure(how=ended.stopped, message=message))
    report = _read(ended.report)
    if is_deep(report, DEEPEST):
        message = f"it is nested more than {DEEPEST} deep: make it flatter."
        return Ran(printed=printed, failure=Failure(how="result", message=message))
    report = plain_json(report)  # JSON has words for halves of characters, and Python's for what is no number
    match report:
        case {"result": value}:
            return Ran(value=value, printed=printed)
        case {"error": str(message)}:
            how: HowItFailed = "memory" if message.startswith("MemoryError") else "raised"
            return Ran(printed=printed, failure=Failure(how=how, message=message, lines=_lines(report)))
        case {"too_large": int(size)}:
            message = f"it has {size:,} bytes, more than {MOST:,}: use a part or a summary of it."
            return Ran(printed=printed, failure=Failure(how="result", message=message))
        case _:
            return Ran(printed=printed, failure=_without_report(ended))


def _read(report: bytes) -> Any:
    try:
        return json.loads(report)
    except (ValueError, RecursionError):
        return None


def _lines(report: dict[str, Any]) -> list[Line]:
    """Where it failed, as far as that is well told: anybody may have written the report."""
    told = report.get("lines")
    return [
        Line(number=number, function=function, source=source)
        for number, function, source in (each for each in (told if isinstance(told, list) else ()) if _is_line(each))
    ]


def _is_line(told: Any) -> bool:
    return isinstance(told, list) and [type(part) for part in told] == [int, str, str]


def _without_report(ended: Ended) -> Failure:
    # A shell, and bubblewrap like one, says 128 and the number of the signal.
    number = -ended.exit_code if ended.exit_code < 0 else ended.exit_code - 128
    if number in _OUT_OF_TIME:
        return Failure(how="timeout", message="")
    if 0 < number < signal.NSIG:
        return Failure(how="broken", message=f"it was ended by signal {number} ({signal.strsignal(number)}).")
    complaint = ended.report.decode("utf-8", "replace").strip()[-500:]
    said = f" and said: {complaint}" if complaint else ""
    return Failure(how="broken", message=f"it ended with exit code {ended.exit_code}{said}, before the script's end.")
