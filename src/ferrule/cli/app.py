"""The command `ferrule`: its options, and where each of its commands is."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from copy import copy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ferrule import __version__
from ferrule.cli import collect_garbage_as_usual
from ferrule.cli.terminal import PlainFormatter, WarningFormatter, exit_without_output, print_error
from ferrule.errors import FerruleError, text_with_notes

EXIT_USAGE: Final = 2
_NEXT_WORD: Final = "ferrule.next_word"
COMMANDS: Final = {
    "ask": ("ask:ask", "Ask a question, or have something done."),
    "chat": ("ask:chat", "Chat with a model that can use tools."),
    "call": ("tools:call", "Call a tool."),
    "tools": ("tools:tools_app", "List, show, search and check tools."),
    "init": ("project:init", "Create a project with example tools."),
    "serve": ("serve:serve", "Serve tools and the agent over HTTP and MCP."),
    "mcp": ("mcp_trust:mcp_app", "Use the tools of MCP servers."),
    "openapi": ("openapi:openapi_app", "Use web APIs that have an OpenAPI document."),
    "skills": ("tools:skills_app", "See and check the skills of a project."),
    "models": ("models:models_app", "List the models that can be used, store keys."),
    "calls": ("records:calls", "Show the latest calls."),
    "stats": ("records:stats", "Show success rates, durations and costs by tool."),
    "costs": ("records:show_costs", "Show what calls of paid tools and replies of models cost."),
    "budgets": ("records:show_budgets", "Show the budgets of ferrule.toml, and what was spent of each."),
    "runs": ("runs:runs_app", "List, show, resume, export and delete runs."),
    "failures": ("runs:failures_app", "List and delete the failures stored from earlier runs."),
    "approvals": ("approvals:approvals_app", "See and decide what waits for your approval."),
    "policy": ("approvals:policy_app", "See which calls the policy allows."),
    "trust": ("project:trust", "Trust a folder: let its Python files, skills, servers and settings be used."),
    "tokens": ("serve:tokens_app", "Create, list, rotate and revoke the tokens of `ferrule serve`."),
    "credentials": (
        "mcp_trust:credentials_app",
        "Store credentials that are sent to remote MCP servers on your behalf.",
    ),
    "batch": ("batch:batch_app", "Run many tasks, each exactly once, and look at their trajectories."),
    "eval": ("models:evaluate", "Run a suite of tasks with checks, and print how many pass, with 95 % intervals."),
    "tasks": ("batch:tasks_app", "Make tasks for batches."),
    "simulate": ("approvals:simulate_history", "Replay recorded calls under another policy."),
    "artifacts": ("records:artifacts_app", "Read results that are too long for a model."),
    "store": ("records:store_app", "Copy and check the store; delete what is old."),
    "doctor": ("project:doctor", "Check that everything works."),
}
"""Each command: its module in this package with the function or group there, and the line that `ferrule --help` prints.
A module is imported when one of its commands is used, because importing all of them takes half a second."""


COMMANDS_OF_SERVERS: Final = ("ask", "call", "tools", "calls", "runs", "approvals")
"""The commands that also work with a server elsewhere."""


class _Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is used; a list of them shows only their summaries.

    Errors, also errors of files, are printed as one line, with the exit code of wrong usage.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()}
        self._lists_summaries = False

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FerruleError as error:
            message = text_with_notes(error)
        except OSError as error:
            if error.filename is None:
                raise
            message = f"{error.filename}: {error.strerror}."
        return self._refuse(message)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, server = args[0], ctx.params.get("server")
        if server is None and name in COMMANDS_OF_SERVERS and any(word.startswith("--server") for word in args):
            self._refuse(f"--server comes first: ferrule --server URL {name} …")
        if server is not None and name in COMMANDS and name not in COMMANDS_OF_SERVERS:
            names = ", ".join(COMMANDS_OF_SERVERS)
            self._refuse(f"{name!r} works without --server only. With it there are: {names}.")
        ctx.meta[_NEXT_WORD] = args[1] if len(args) > 1 else None
        return super().resolve_command(ctx, args)

    def _refuse(self, message: str) -> NoReturn:
        print_error(f"ferrule: {message}")
        raise typer.Exit(EXIT_USAGE)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._lists_summaries or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return _import_command(cmd_name, None if ctx is None else ctx.meta.get(_NEXT_WORD))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._lists_summaries = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists_summaries = False


@cache
def _import_command(name: str, next_word: str | None) -> Any:
    """Import a command. Of a group, only the command that the next word names is built, because that takes time."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"ferrule.cli.{module}"), attribute)
    if isinstance(command, typer.Typer):
        commands = command.registered_commands
        named = [each for each in commands if next_word == (each.name or getattr(each.callback, "__name__", ""))]
        command = copy(command)
        command.registered_commands = named or commands
        group = typer.main.get_group(command)
        group.name = name
        return group
    single = typer.Typer(add_completion=False)
    single.command(name)(command)
    return typer.main.get_command(single)


app = typer.Typer(
    name="ferrule",
    cls=_Commands,
    help="One governed runtime for every tool a language model may use.",
    epilog=f"ferrule --server URL … uses a remote server: {', '.join(COMMANDS_OF_SERVERS)}.",
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
            app()
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
    server: Annotated[str | None, typer.Option("--server", hidden=True)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to standard error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments and results may have lone surrogates, which UTF-8 cannot encode; in JSON this writes their escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Only lines of Ferrule: HTTP libraries log whole headers and cookies.
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(PlainFormatter("%(levelname)s %(name)s %(message)s") if verbose else WarningFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    logging.getLogger("ferrule").setLevel(logging.DEBUG if verbose else logging.WARNING)
    from ferrule.cli.session import Session

    context.obj = Session(config, server=server)
    collect_garbage_as_usual()  # the module of the command is imported
