"""The commands for skills: `ferrule skills list|validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import show
from ferrule.cli.session import USAGE, Session, fail
from ferrule.cli.terminal import complain, say
from ferrule.errors import FerruleError
from ferrule.sources.skill_directory import SkillsDirectory
from ferrule.sources.skill_paths import document_in, skill_folders
from ferrule.sources.skill_rules import validate_skill
from ferrule.spec import Tool, ToolType

skills_app = typer.Typer(help="See and check the skills of a project.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@skills_app.command("list")
def list_skills(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(help="A folder of skills; else the project's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the skills. Python files are run."""
    report = SkillsDirectory(*([directory] if directory is not None else _project_folders(context.obj))).load()
    if as_json:
        skills, errors = map(_described, report.tools), map(show.problem, report.errors)
        show.as_json({"skills": list(skills), "errors": list(errors)})
    else:
        show.table(
            ("skill", "description", "actions", "tools it may use", "where"),
            [_row(tool) for tool in report.tools],
            empty="There are no skills here. A skill is a folder with a SKILL.md in it, in skills/.",
            cut=(1, 3, 4),
        )
        for error in report.errors:
            complain(f"ferrule: not loaded: {error}")
    if report.errors:
        raise typer.Exit(1)


@skills_app.command("validate")
def validate_skills(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Folders of skills, or the folder of one; else the project's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold folders with a SKILL.md to the Agent Skills specification, and print all problems at once."""
    if paths:
        folders = [folder for path in paths for folder in _skills_in(path) or [path]]
    else:
        folders = [folder for path in _project_folders(context.obj) for folder in _skills_in(path)]
    found = {folder: validate_skill(folder) for folder in folders}
    problems = [error for errors in found.values() for error in errors]
    right = [folder for folder, errors in found.items() if not errors]
    if as_json:
        show.as_json({"skills": [str(folder) for folder in right], "errors": [show.problem(e) for e in problems]})
    else:
        for error in problems:
            say(error)
        show.verdict(len(right), "skill", len(problems))
    if problems:
        raise typer.Exit(1)


def _project_folders(session: Session) -> list[Path]:
    try:
        config = session.config()
    except FerruleError as error:
        fail(str(error), code=USAGE)
    if config.path is None:
        fail("There is no ferrule.toml here. Name the folder: ferrule skills list skills", code=USAGE)
    folders = map(Path, config.placed_engine_config.skills_directories)
    here = Path.cwd()
    return [folder.relative_to(here) if folder.is_relative_to(here) else folder for folder in folders]


def _skills_in(path: Path) -> list[Path]:
    """The folders of skills under a folder, which may be one itself."""
    return [folder for folder in skill_folders(path) if document_in(folder) is not None]


def _described(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.id,
        "description": tool.spec.description,
        "kind": "folder" if tool.spec.tool_type == ToolType.SKILL else "python",
        "actions": [capability.name for capability in tool.spec.capabilities],
        "allowed_tools": list(tool.spec.metadata.get("allowed_tools", ())),
        "origin": tool.origin,
    }


def _row(tool: Tool) -> tuple[str, str, str, str, str]:
    said = _described(tool)
    actions = "SKILL.md" if said["kind"] == "folder" else ", ".join(said["actions"])
    return tool.id, show.first_sentence(tool.spec.description), actions, " ".join(said["allowed_tools"]), tool.origin
