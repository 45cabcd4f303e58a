"""The command `ferrule`: its options, and where each of its commands is."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ferrule import __version__
from ferrule.cli.terminal import PlainFormatter, WarningFormatter, exit_without_output, print_error

EXIT_USAGE: Final = 2
COMMANDS: Final = {
    "ask": "questions:ask",
    "chat": "questions:chat",
    "call": "tools:call",
    "tools": "tools:tools_app",
    "init": "project_commands:init",
    "serve": "serve:serve",
    "mcp": "credentials:mcp_app",
    "openapi": "openapi:openapi_app",
    "skills": "skills:skills_app",
    "models": "models:models_app",
    "calls": "records:calls",
    "stats": "records:stats",
    "costs": "costs:show_costs",
    "budgets": "costs:show_budgets",
    "runs": "questions:runs_app",
    "failures": "questions:failures_app",
    "approvals": "approvals:approvals_app",
    "policy": "approvals:policy_app",
    "trust": "project_commands:trust",
    "tokens": "serve:tokens_app",
    "credentials": "credentials:credentials_app",
    "batch": "batch:batch_app",
    "eval": "evaluation:evaluate",
    "tasks": "evaluation:tasks_app",
    "simulate": "evaluation:simulate_history",
    "artifacts": "records:artifacts_app",
    "store": "records:store_app",
    "doctor": "project_commands:doctor",
}
"""The module of each command, in this package, and its function or group there."""


COMMANDS_OF_SERVERS: Final = ("ask", "call", "tools", "calls", "runs", "approvals")
"""The commands that also work with a server elsewhere."""


class _CommandTable(MutableMapping[str, Any]):
    """The commands by their names. A module is imported when one of its commands is looked up, because starting
    `ferrule call` would otherwise take as long as loading everything."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            command = getattr(import_module(f"ferrule.cli.{module}"), attribute)
            self._loaded[name] = _make_command(name, command)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._places[name] = ""
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _make_command(name: str, command: Any) -> Any:
    if isinstance(command, typer.Typer):
        group = typer.main.get_group(command)
        group.name = name
        return group
    single = typer.Typer(add_completion=False)
    single.command(name)(command)
    return typer.main.get_command(single)


class _Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _CommandTable(COMMANDS)


app = typer.Typer(
    name="ferrule",
    cls=_Commands,
    help="One governed runtime for every tool a language model may use.",
    epilog=f"ferrule --server URL … uses a server elsewhere: {', '.join(COMMANDS_OF_SERVERS)}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of writing to standard output: it was closed, or its disk is full."""


def main() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        print_error("ferrule: The folder you are in does not exist any more. Change to another one.")
        sys.exit(EXIT_USAGE)
    if "ask" in sys.argv[1:4]:  # `ferrule ask "-5 + 12"` has no option -5
        sys.argv = [f" {word}" if re.match(r"-[\d.(]", word) else word for word in sys.argv]
    try:
        try:
            _choose_app(sys.argv[1:])()
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer ends with 1, as if the command had failed
            exit_without_output(end.__context__)
        raise
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        exit_without_output(error)


def _choose_app(arguments: Sequence[str]) -> typer.Typer:
    """The commands for this machine, or those for a server elsewhere."""
    if not arguments or not arguments[0].startswith("--server"):
        if arguments and arguments[0] in COMMANDS_OF_SERVERS and any(word.startswith("--server") for word in arguments):
            print_error(f"ferrule: --server comes first: ferrule --server URL {arguments[0]} …")
            sys.exit(EXIT_USAGE)
        return app
    from ferrule.cli.remote import remote_app

    return remote_app


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"ferrule {__version__}")
        raise typer.Exit


@app.callback()
def set_global_options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="The ferrule.toml to use; default: the nearest one in this folder or above."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to standard error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments and results may have lone surrogates, which UTF-8 cannot encode; in JSON this writes their escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Only Ferrule's own lines: those of HTTP libraries contain whole headers and cookies.
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(PlainFormatter("%(levelname)s %(name)s %(message)s") if verbose else WarningFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    logging.getLogger("ferrule").setLevel(logging.DEBUG if verbose else logging.WARNING)
    from ferrule.cli.session import Session

    context.obj = Session(config)
