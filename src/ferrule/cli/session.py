"""What every command needs: the project's engine, Ctrl-C that stops cleanly, and exit codes that tell."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

from ferrule.call import ToolExecutionResult
from ferrule.cli.terminal import complain
from ferrule.config import FerruleConfig
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import (
    CANCELLED,
    EXECUTION_ERROR,
    EXECUTOR_NOT_FOUND,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    FerruleError,
)
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.store import ToolKnowledgeStore

T = TypeVar("T")

NOWHERE = f"{os.devnull}/none"
"""In the place of a folder or file of tools: it is not there, and never will be."""
USAGE = 2
EXIT_CODES = {
    EXECUTION_ERROR: 1,
    VALIDATION_ERROR: 2,
    TOOL_NOT_FOUND: 3,
    EXECUTOR_NOT_FOUND: 3,
    TIMEOUT: 4,
    REJECTED: 5,
    PERMISSION_DENIED: 6,
    KNOWN_FAILURE: 7,
    CANCELLED: 130,
}


class Session:
    """The project a command works on."""

    def __init__(self, config_path: Path | None) -> None:
        self._path = config_path

    def config(self) -> FerruleConfig:
        """The project's configuration; outside a project the records go to the user's own state folder."""
        config = FerruleConfig.read(self._path) if self._path is not None else FerruleConfig.find(Path.cwd())
        if config.store.url is not None:
            return config
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "ferrule"
        url = f"sqlite:///{state / 'calls.db'}"
        return dataclasses.replace(config, store=dataclasses.replace(config.store, url=url))

    def tools_directory(self) -> Path | None:
        """The folder of tools. Loading it runs it, and without a project `./tools` may be anybody's: then there is none
        unless a variable names it.
        """
        config = self.config()
        if config.path is None and "FERRULE_ENGINE_TOOLS_DIRECTORY" not in os.environ:
            return None
        return config.root / config.engine_config.tools_directory

    def store(self) -> ToolKnowledgeStore:
        """The records alone: to look at them no tool is loaded."""
        config = self.config()
        bare = dataclasses.replace(config, engine_config=without_files(config.engine_config))
        return bare.engine(leave_records_to_others=True).store

    def engine(self, on_elicit: OnElicit | None = None, *, watch: bool = False) -> ToolEngine:
        """The project's engine. Only one that stays must `watch` files: a command is over before one could change."""
        config = self.config()
        settled = config.engine_config
        if not watch:
            settled = dataclasses.replace(settled, auto_reload=False, watch_for_changes=False)
        if config.path is None:
            named = self.tools_directory()
            settled = dataclasses.replace(without_files(settled), tools_directory=str(named or NOWHERE))
            if named is None and Path("tools").is_dir():
                complain("ferrule: ./tools is not loaded: there is no ferrule.toml. Make one if it is yours.")
        settled_config = dataclasses.replace(config, engine_config=settled)
        return settled_config.engine(leave_records_to_others=not watch, on_elicit=on_elicit)


def without_files(config: ToolEngineConfig) -> ToolEngineConfig:
    """The same without folders of tools and skills, without servers and documents."""
    return dataclasses.replace(config, tools_directory=NOWHERE, skills_directories=(), mcp_file=None, openapi=())


def run(story: Coroutine[Any, Any, T], *, if_stopped: Callable[[], str] = str) -> T:
    """Run a command's story; what goes wrong becomes one line and an exit code.

    `if_stopped` says what can be done after Ctrl-C.
    """
    try:
        return asyncio.run(_until_interrupted(story))
    except KeyboardInterrupt:
        fail(f"Stopped.{if_stopped()}", code=130)
    except FerruleError as error:
        fail(str(error), code=USAGE)


async def _until_interrupted(story: Coroutine[Any, Any, T]) -> T:
    # Ctrl-C and `kill` cancel the story, so that running tools are ended and the store is closed.
    task = asyncio.ensure_future(story)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def fail(message: str, *, code: int) -> NoReturn:
    complain(f"ferrule: {message}")
    raise typer.Exit(code)


def exit_with(result: ToolExecutionResult) -> None:
    if not result.is_success:
        raise typer.Exit(EXIT_CODES.get(result.error_type or "", 1))
