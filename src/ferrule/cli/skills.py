"""The commands for skills: `ferrule skills list|validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.options import AsJson
from ferrule.cli.session import EXIT_USAGE, Session, fail
from ferrule.cli.terminal import echo, print_error
from ferrule.core.spec import Tool, ToolType
from ferrule.errors import FerruleError
from ferrule.kinds.skill.directory import SkillsDirectory, find_skill_file, skill_folders
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.kinds.skill.strict_validation import validate_skill

skills_app = typer.Typer(help="See and check the skills of a project.", no_args_is_help=True)


@skills_app.command("list")
def list_skills(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(help="A folder of skills; else the project's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the skills. Python files are run."""
    report = SkillsDirectory(*([directory] if directory is not None else _project_skill_folders(context.obj))).load()
    if as_json:
        skills, errors = map(_describe_skill, report.tools), map(printing.problem_to_dict, report.errors)
        printing.print_json({"skills": list(skills), "errors": list(errors)})
    else:
        printing.print_table(
            ("skill", "description", "actions", "tools it may use", "where"),
            [_skill_row(tool) for tool in report.tools],
            empty="There are no skills here. A skill is a folder with a SKILL.md in it, in skills/.",
            cut=(1, 3, 4),
        )
        for error in report.errors:
            print_error(f"ferrule: not loaded: {error}")
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
    """Check folders with a SKILL.md against the Agent Skills specification, and print all problems."""
    if paths:
        folders = [folder for path in paths for folder in _find_skills(path) or [path]]
    else:
        folders = [folder for path in _project_skill_folders(context.obj) for folder in _find_skills(path)]
    results = {folder: validate_skill(folder) for folder in folders}
    problems = [error for errors in results.values() for error in errors]
    valid = [folder for folder, errors in results.items() if not errors]
    if as_json:
        printing.print_json(
            {"skills": [str(folder) for folder in valid], "errors": [printing.problem_to_dict(e) for e in problems]}
        )
    else:
        for error in problems:
            echo(error)
        printing.print_check_summary(len(valid), "skill", len(problems))
    if problems:
        raise typer.Exit(1)


def _project_skill_folders(session: Session) -> list[Path]:
    try:
        config = session.config()
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)
    if config.path is None:
        fail("There is no ferrule.toml here. Name the folder: ferrule skills list skills", code=EXIT_USAGE)
    folders = map(Path, config.engine_config_with_paths.skills_directories)
    here = Path.cwd()
    return [folder.relative_to(here) if folder.is_relative_to(here) else folder for folder in folders]


def _find_skills(path: Path) -> list[Path]:
    """The folders of skills under a folder, which may be one itself."""
    return [folder for folder in skill_folders(path) if find_skill_file(folder) is not None]


def _describe_skill(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.id,
        "description": tool.spec.description,
        "kind": "folder" if tool.spec.tool_type == ToolType.SKILL else "python",
        "actions": [capability.name for capability in tool.spec.capabilities],
        "allowed_tools": list(tool.spec.metadata.get("allowed_tools", ())),
        "digest": tool.target.digest if isinstance(tool.target, SkillFolder) else "",
        "origin": tool.origin,
    }


def _skill_row(tool: Tool) -> tuple[str, str, str, str, str]:
    description = _describe_skill(tool)
    actions = "SKILL.md" if description["kind"] == "folder" else ", ".join(description["actions"])
    return (
        tool.id,
        printing.first_sentence(tool.spec.description),
        actions,
        " ".join(description["allowed_tools"]),
        tool.origin,
    )
