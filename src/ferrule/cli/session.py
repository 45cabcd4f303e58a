"""What every command needs: options, the project's engine, arguments, a clean stop on Ctrl-C, and exit codes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer

from ferrule.cli.terminal import confirm, has_terminal, print_error
from ferrule.config import FerruleConfig
from ferrule.core.elicitation import OnElicit
from ferrule.engine import ToolEngine
from ferrule.engine.config import NO_FOLDER
from ferrule.engine.plugins import ToolPlugins, find_plugin_entries
from ferrule.errors import (
    APPROVAL_REQUIRED,
    CANCELLED,
    EXECUTION_ERROR,
    EXECUTOR_NOT_FOUND,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    SetupError,
)
from ferrule.folder_trust import (
    REPLACED,
    FolderTrust,
    describe_changes,
    describe_contents,
    describe_items,
    how_to_trust,
    read_folder_trust,
    read_servers,
    trust_folder,
    untrusted_error,
    without_tool_sources,
)
from ferrule.store import ToolKnowledgeStore
from ferrule.store.location import user_state_directory
from ferrule.telemetry.tracing import Tracing, start_tracing

T = TypeVar("T")

DEFAULT_MCP_FILE = "mcp.json"
EXIT_USAGE, EXIT_WAITING, EXIT_STOPPED = 2, 8, 9
EXIT_CODES = {
    EXECUTION_ERROR: 1,
    VALIDATION_ERROR: 2,
    TOOL_NOT_FOUND: 3,
    EXECUTOR_NOT_FOUND: 3,
    TIMEOUT: 4,
    REJECTED: 5,
    PERMISSION_DENIED: 6,
    APPROVAL_REQUIRED: 8,
    KNOWN_FAILURE: 7,
    CANCELLED: 130,
}


class Session:
    """The project a command works on."""

    def __init__(
        self, config_path: Path | None, *, accepted_servers: frozenset[str] | None = None, server: str | None = None
    ) -> None:
        """`accepted_servers`: the servers of `mcp.json` that may be started, if that was decided before.

        `server` is the address of a server elsewhere, whose project is used in place of the one here.
        """
        self.server = server
        self._path, self._accepted_servers = config_path, accepted_servers
        self.tracing: Tracing | None = None
        """Sends the traces of the engine; None if that is not configured."""

    @cached_property
    def config_before_trust(self) -> FerruleConfig:
        """Return the configuration, whether the folder is trusted or not: only for where the files are."""
        if self.server is not None:
            fail("This works without --server only.")
        return FerruleConfig.read(self._path) if self._path is not None else FerruleConfig.find(Path.cwd())

    @cached_property
    def _folder_trust(self) -> FolderTrust:
        """Return what the user has decided about the folder. The user is asked at most once."""
        config = self.config_before_trust
        return _decide_trust(config if config.path is not None else FerruleConfig.defaults_for_folder(Path.cwd()))

    @property
    def is_trusted(self) -> bool:
        """Return whether the project's files may be run: `--config` names the project, or its folder is trusted."""
        return self._path is not None or self.config_before_trust.path is None or self._folder_trust.is_trusted

    @property
    def accepted_servers(self) -> frozenset[str] | None:
        """Return the digests of the servers of `mcp.json` that may be started; None for all."""
        return self._accepted_servers if self._path is not None else self._folder_trust.servers

    def config(self) -> FerruleConfig:
        """Return the project's configuration. Outside a project, records go to the user's state folder."""
        config = self.config_before_trust
        if not self.is_trusted:
            raise untrusted_error(self._folder_trust.folder)
        if config.path is not None and self.accepted_servers is not None:
            engine_config = dataclasses.replace(config.engine_config, accepted_servers=self.accepted_servers)
            config = dataclasses.replace(config, engine_config=engine_config)
        return _with_store(config)

    def store(self) -> ToolKnowledgeStore:
        """Make the store without the engine: reading records loads no tool."""
        config = self.config()
        bare = dataclasses.replace(config, engine_config=without_tool_sources(config.engine_config))
        return bare.engine(defer_record_import=True).store

    def engine(
        self,
        on_elicit: OnElicit | None = None,
        *,
        watch: bool = False,
        tool_name: str | None = None,
        mcp_file: Path | None = None,
        is_long: bool = False,
        bundled: Collection[str] | None = None,
    ) -> ToolEngine:
        """Make the project's engine. Only a server needs to `watch` files.

        A command that runs long (`is_long`) writes its records into the database while it runs.

        With `tool_name`, only plugins that provide this tool are loaded at first. For `mcp_file` see `project`.
        `bundled` names the only bundled tools, and tools of installed packages, that are loaded; None: as configured.
        """
        project = self.project(watch=watch, mcp_file=mcp_file)
        if bundled is not None:
            engine_config = dataclasses.replace(project.engine_config, builtin_tools=False)
            project = dataclasses.replace(project, engine_config=engine_config)
        engine = project.engine(defer_record_import=not (watch or is_long), on_elicit=on_elicit, tool_name=tool_name)
        if bundled:
            excluded = [entry.name for entry in find_plugin_entries() if entry.name not in bundled]
            engine.use_plugins(ToolPlugins(project.tool_setup(engine), excluded=excluded))
        self.tracing = start_tracing(project.telemetry, engine)
        return engine

    def project(self, *, watch: bool = False, mcp_file: Path | None = None) -> FerruleConfig:
        """Return the configuration of the engine, with the files of tools and servers that may be used.

        `mcp_file` is a file of MCP servers that the user names; by default the project's, or `mcp.json`
        in this folder.
        """
        config = self.config()
        engine_config = config.engine_config
        if not watch:
            engine_config = dataclasses.replace(engine_config, auto_reload=False, watch_for_changes=False)
        if config.path is None:
            # Loading runs Python files, and `./tools` may come from anywhere, unless a variable names the folder.
            directory, is_named = engine_config.tools_directory, "FERRULE_ENGINE_TOOLS_DIRECTORY" in os.environ
            engine_config = dataclasses.replace(
                without_tool_sources(engine_config),
                tools_directory=str(config.root / directory) if is_named else NO_FOLDER,
            )
            if not is_named and Path("tools").is_dir():
                print_error(
                    "ferrule: ./tools is not loaded without a ferrule.toml. If you trust it, create one: ferrule init"
                )
        if mcp_file is not None:  # a user who names a file may decide what is started
            engine_config = dataclasses.replace(engine_config, mcp_file=str(mcp_file.absolute()), accepted_servers=None)
        elif config.path is None and Path(DEFAULT_MCP_FILE).is_file():
            path, accepted = str(Path(DEFAULT_MCP_FILE).absolute()), self.accepted_servers
            engine_config = dataclasses.replace(engine_config, mcp_file=path, accepted_servers=accepted)
        return dataclasses.replace(config, engine_config=engine_config)

    def listing_engine(self) -> ToolEngine:
        """Make the engine for a command that lists tools: of an untrusted folder, YAML tools and no setting."""
        if self.is_trusted:
            return self.engine()
        folder = self._folder_trust.folder
        print_error(f"ferrule: {folder} is not trusted: only its YAML tools are listed. {how_to_trust(folder)}")
        return _with_store(self.config_before_trust.for_untrusted_folder()).engine(defer_record_import=True)


def _decide_trust(config: FerruleConfig) -> FolderTrust:
    """Return the record of a project's folder. At a terminal, the user is asked about what is new in the folder."""
    record = read_folder_trust(config.root)
    if not record.is_trusted and not has_terminal():
        return record
    servers = read_servers(config)
    if not record.is_trusted:
        reason = REPLACED if record.was_replaced else "It is not trusted yet."
        question = [f"ferrule: {record.folder}: {reason} Its files decide what is run:"]
        if confirm([*question, *describe_contents(config)], "Do you trust the files of this folder?"):
            return trust_folder(config, servers)
        return record
    unknown = {n: s for n, s in servers.items() if s.trust_digest not in record.servers and not s.disabled}
    if unknown:
        question = [f"ferrule: these servers of {config.engine_config.mcp_file} are new or changed:"]
        question += describe_items(
            "server", [describe_changes(name, server, record) for name, server in unknown.items()]
        )
        if confirm(question, "Start them from now on?"):
            return trust_folder(config, unknown)
    return record


def _with_store(config: FerruleConfig) -> FerruleConfig:
    """Return the configuration with a place for its records."""
    if config.store.url is not None:
        return config
    url = f"sqlite:///{user_state_directory() / 'calls.db'}"
    return dataclasses.replace(config, store=config.store.model_copy(update={"url": url}))


def run(command: Coroutine[Any, Any, T], *, after_interrupt: Callable[[], str] = str) -> T:
    """Run the asynchronous part of a command; Ctrl-C and `kill` cancel it.

    `after_interrupt` returns what to print after Ctrl-C.
    """

    async def run_until_interrupted() -> T:
        # Ctrl-C and `kill` cancel the command, so that running tools end and the store is closed.
        task = asyncio.ensure_future(command)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    try:
        return asyncio.run(run_until_interrupted())
    except KeyboardInterrupt:
        fail(f"Stopped.{after_interrupt()}", code=130)


def run_with_store(session: Session, work: Callable[[ToolKnowledgeStore], Coroutine[Any, Any, T]]) -> T:
    """Run work that needs the store of the project and no tool."""

    async def command() -> T:
        async with session.store() as store:
            return await work(store)

    return run(command())


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open the file that a command writes, or standard output. If the file cannot be written, the command ends."""
    if path is None:
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}.")
    with file:
        yield file


def fail(message: str, *, code: int = EXIT_USAGE) -> NoReturn:
    """Print an error and end the command; by default with the exit code of wrong usage."""
    print_error(f"ferrule: {message}")
    raise typer.Exit(code)


# ---- arguments: `key=value`, or `key:=JSON` for values that are not text


def parse_arguments(pairs: Sequence[str] | None, params: str | None = None) -> dict[str, Any]:
    """Parse the arguments of a call. Pairs override `--params`."""
    arguments = _read_params(params) if params is not None else {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.rstrip(":"):
            hint = " For a JSON object, use --params." if pair.startswith("{") else ""
            raise SetupError(f"An argument is written name=value, or name:=JSON; {pair!r} is neither.{hint}")
        if name.endswith(":"):
            arguments[name[:-1]] = _parse_json(value, f"{name}=")
        else:
            arguments[name] = value
    return arguments


def parse_pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse an option that takes `NAME=VALUE` several times. Raises SetupError for other forms."""
    pairs = {}
    for pair in values or ():
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise SetupError(f"{option} takes NAME=VALUE, not {pair!r}.")
        pairs[name] = value
    return pairs


def _read_params(params: str) -> dict[str, Any]:
    if params == "-":
        text = sys.stdin.read()
    elif params.startswith("@"):
        try:
            text = Path(params[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise SetupError(f"Cannot read {params[1:]}: {error.strerror}.") from None
    else:
        text = params
    read = _parse_json(text, "--params")
    if not isinstance(read, dict):
        raise SetupError(f"--params takes a JSON object such as '{{\"a\": 1}}', not {text[:60]!r}.")
    return read


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SetupError(f"{where} is not valid JSON ({error}): {text[:60]!r}") from None


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, ollama:NAME or offline; see `ferrule models`."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; default: standard output.")]
Since = Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")]
MaxCount = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")]
RunId = Annotated[str, typer.Argument(help="The id of the run.")]
ToolName = Annotated[str, typer.Argument(help="The tool, or tool__action where it has several.")]
ArgumentPairs = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments; KEY:=JSON for values that are not text.")
]
ArgumentsAsJson = Annotated[
    str | None, typer.Option("--params", "-p", help="All arguments as a JSON object; @FILE, or - for stdin.")
]
ActionName = Annotated[str | None, typer.Option("--action", "-a", help="Which action of the tool.")]
CallTimeout = Annotated[float | None, typer.Option("--timeout", "-t", min=0.001, help="Maximum seconds.")]
ApprovalOfCall = Annotated[
    str | None, typer.Option("--approval", help="The id of the approval that this call needed before.")
]


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_since(since: str | None, option: str = "--since") -> datetime | None:
    """Parse an age such as `2h`, or a date and time. Raises SetupError for other forms."""
    if since is None:
        return None
    if since[:-1].isdigit() and since[-1] in _UNITS:
        return datetime.now(UTC) - timedelta(**{_UNITS[since[-1]]: int(since[:-1])})
    try:
        start = datetime.fromisoformat(since)
    except ValueError:
        raise SetupError(f"{option} takes 10m, 2h, 7d or a date such as 2026-01-31, not {since!r}.") from None
    return start.astimezone() if start.tzinfo is None else start
