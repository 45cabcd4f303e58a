"""The commands `ferrule init`, `trust` and `doctor`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli import printing
from ferrule.cli.options import AsJson
from ferrule.cli.project import make_project, read_project, run_checks
from ferrule.cli.session import EXIT_USAGE, Session, fail, run
from ferrule.cli.terminal import echo
from ferrule.config import FerruleConfig
from ferrule.errors import FerruleError, SetupError
from ferrule.folder_trust import (
    delete_folder_trust,
    describe_contents,
    how_to_trust,
    list_trusted_folders,
    read_folder_trust,
    trust_folder,
)


def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="The folder; created if it does not exist.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Create a project with example tools."""
    try:
        created = make_project(directory, force=force)
    except OSError as error:
        fail(f"The project cannot be created: {error.filename}: {error.strerror}.", code=EXIT_USAGE)
    except SetupError as error:
        fail(str(error), code=EXIT_USAGE)
    for path in created.paths:
        echo(f"created {path}")
    if not created.is_trusted:
        echo(f"{directory} has other files that would be run. {how_to_trust(directory.resolve())}")
    where = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    echo(f"\nNext: {where}ferrule tools list\n      ferrule call add a=1 b=2")


def trust(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder of the project; else the one you are in.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the folder no longer.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the trusted folders.")] = False,
    as_json: AsJson = False,
) -> None:
    """Trust a folder: let its Python files, skills, servers and settings be used."""
    if show_list:
        records = list_trusted_folders()
        if as_json:
            printing.print_json([record.to_dict() for record in records])
        else:
            rows = [(str(record.folder), record.trusted_at or "") for record in records]
            printing.print_table(("folder", "trusted at"), rows, empty="No folder is trusted.", cut=(0,))
        return
    config = _read_project_of(directory)
    folder = config.root.resolve()
    if revoke:
        if not delete_folder_trust(folder):
            fail(f"{folder} is not trusted. See the trusted folders with: ferrule trust --list", code=1)
    else:
        lines = describe_contents(config)
        trust_folder(config)
    if as_json:
        printing.print_json(read_folder_trust(folder).to_dict())
    else:
        echo("\n".join([f"no longer trusted: {folder}"] if revoke else [f"trusted: {folder}", *lines]))


def _read_project_of(directory: Path | None) -> FerruleConfig:
    """The configuration in a folder, else that of the project this folder belongs to."""
    if directory is not None and not directory.is_dir():
        fail(f"No such folder: {str(directory)!r}.", code=EXIT_USAGE)
    try:
        return read_project(directory) if directory is not None else Session(None).config_before_trust
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check that everything works."""
    checks = run(run_checks(context.obj))
    if as_json:
        printing.print_json([vars(check) for check in checks])
    else:
        for check in checks:
            echo(f"{'ok  ' if check.ok else 'BAD '} {check.name:<15} {check.finding}")
            if check.advice:
                echo(f"     {'':<15} {check.advice}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
