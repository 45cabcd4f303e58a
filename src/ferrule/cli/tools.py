"""`ferrule tools`, `ferrule call` and `ferrule skills`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.client import CallOptions, client_of
from ferrule.cli.session import (
    EXIT_CODES,
    ActionName,
    ApprovalOfCall,
    ArgumentPairs,
    ArgumentsAsJson,
    AsJson,
    CallTimeout,
    Session,
    ToolName,
    fail,
    parse_arguments,
)
from ferrule.cli.terminal import print_error
from ferrule.core.spec import Tool, ToolType
from ferrule.kinds.skill.directory import SkillsDirectory, find_skill_file, skill_folders
from ferrule.kinds.skill.folder import SkillFolder

tools_app = typer.Typer(help="List, show, search and check tools.", no_args_is_help=True)


def call(
    context: typer.Context,
    name: ToolName,
    arguments: ArgumentPairs = None,
    params: ArgumentsAsJson = None,
    action: ActionName = None,
    timeout: CallTimeout = None,
    approval: ApprovalOfCall = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result's image, audio or file here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool.

    Exit codes: 0 success, 1 the tool failed, 2 wrong arguments, 3 no such tool, 4 timed out, 5 rejected,
    6 not permitted, 8 waits for approval, 130 stopped by Ctrl-C.
    """
    options = CallOptions(action=action, timeout=timeout, approval=approval, shows_progress=not as_json)
    values = parse_arguments(arguments, params)
    result, described, whole_output = client_of(context, local_only=("output",)).call(name, values, options)
    if output is not None:
        data = next((d for part in result.content if (d := getattr(part, "data", None)) is not None), None)
        output.write_bytes(data if data is not None else result.text.encode())
        print_error(f"ferrule: wrote {output}")
    printing.print_json(described) if as_json else printing.print_result(result, whole_output)
    if not result.is_success:
        raise typer.Exit(EXIT_CODES.get(result.error_type or "", 1))


@tools_app.command("list")
def list_tools(
    context: typer.Context,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only tools with this tag.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only tools of this source.")] = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only tools of this category, or category/subcategory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tools."""
    tags = {each.casefold() for each in tag or ()}
    tools = [
        tool
        for tool in client_of(context, local_only=("category",)).list_tools()
        if (not tags or tags & {each.casefold() for each in tool["tags"]})
        and source in (None, tool["source"])
        and (category is None or category in (tool["category"], f"{tool['category']}/{tool['subcategory']}"))
    ]
    printing.print_json(tools) if as_json else printing.print_tools(tools)


@tools_app.command("show")
def show_tool(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The tool.")], as_json: AsJson = False
) -> None:
    """Show a tool in detail."""
    client_of(context).show_tool(name, as_json=as_json)


@tools_app.command("search")
def search_tools(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(help="What the tool should be about.")],
    as_json: AsJson = False,
) -> None:
    """Find tools by words in their names, tags and descriptions; with the extra `semantic` by meaning too."""
    tools = client_of(context).search_tools(" ".join(words))
    if as_json:
        printing.print_json(tools)
    elif tools:
        printing.print_tools(tools)
    else:
        fail(f"No tool matches {' '.join(words)!r}. List all tools: ferrule tools list", code=1)


@tools_app.command("validate")
def validate_tools(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(help="A folder of tools, a file of tools or an OpenAPI document; else the project.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check files of tools and print all problems. Python files are run.

    Without a path: all files of the project, with its skills, servers and OpenAPI documents.
    """
    if path is not None and not path.exists():
        fail(f"No such folder or file: {str(path)!r}.")
    from ferrule.cli.project import check_path, check_project

    if path is not None:
        report = check_path(path)
    elif (config := context.obj.config()).path is not None:
        report = check_project(config)
    else:
        fail("No ferrule.toml here. Name the folder to check: ferrule tools validate tools")
    printing.print_check("tool", [tool.id for tool in report.tools], report.errors, as_json=as_json)


skills_app = typer.Typer(help="See and check the skills of a project.", no_args_is_help=True)


@skills_app.command("list")
def list_skills(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(help="A folder of skills; else the project's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the skills. Python files are run."""
    report = SkillsDirectory(*([directory] if directory is not None else _project_skill_folders(context.obj))).load()
    skills = list(map(_describe_skill, report.tools))
    columns: printing.Columns = {
        "skill": "name",
        "description": lambda skill: printing.first_sentence(skill["description"]),
        "actions": lambda skill: "SKILL.md" if skill["kind"] == "folder" else ", ".join(skill["actions"]),
        "tools it may use": lambda skill: " ".join(skill["allowed_tools"]),
        "where": "origin",
    }
    empty = "There are no skills here. A skill is a folder with a SKILL.md in it, in skills/."
    printing.print_report(("skills", skills), columns, report.errors, as_json=as_json, empty=empty, cut=(1, 3, 4))


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
    from ferrule.kinds.skill.front_matter import validate_skill  # imports pydantic

    results = {folder: validate_skill(folder) for folder in folders}
    problems = [error for errors in results.values() for error in errors]
    valid = [str(folder) for folder, errors in results.items() if not errors]
    printing.print_check("skill", valid, problems, as_json=as_json)


def _project_skill_folders(session: Session) -> list[Path]:
    config = session.config()
    if config.path is None:
        fail("There is no ferrule.toml here. Name the folder: ferrule skills list skills")
    folders = map(Path, config.engine_config_with_paths.skills_directories)
    here = Path.cwd()
    return [folder.relative_to(here) if folder.is_relative_to(here) else folder for folder in folders]


def _find_skills(path: Path) -> list[Path]:
    """Find the folders of skills under a folder, which may be a skill itself."""
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
