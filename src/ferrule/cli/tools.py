"""`ferrule tools`, `ferrule call` and `ferrule skills`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.printing import examples_without_secrets, schema_without_secrets
from ferrule.cli.session import (
    ActionName,
    ApprovalOfCall,
    ArgumentPairs,
    ArgumentsAsJson,
    AsJson,
    CallTimeout,
    Session,
    ToolName,
    exit_on_failure,
    fail,
    parse_arguments,
    run,
)
from ferrule.cli.terminal import ProgressLine, echo, indent_lines, print_error, terminal_elicitation
from ferrule.config import FerruleConfig
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.spec import Tool, ToolType, listing_order
from ferrule.engine import ToolEngine
from ferrule.kinds.skill.directory import SkillsDirectory, find_skill_file, skill_folders
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.kinds.skill.strict_validation import validate_skill
from ferrule.library.library import UnifiedToolLibrary

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

    whole_output: bytes | None = None

    async def command() -> ToolExecutionResult:
        nonlocal whole_output
        values = parse_arguments(arguments or (), params)
        line = ProgressLine(enabled=not as_json)
        engine = context.obj.engine(on_elicit=terminal_elicitation(line.hidden), tool_name=name)
        async with UnifiedToolLibrary(engine=engine, hub=context.obj.config().hub) as library:
            with line:
                call_context = ToolExecutionContext(caller_type="direct", caller_id="cli", approval_id=approval)
                outcome = await library.execute(
                    name, values, call_context, action=action, timeout=timeout, on_progress=line.progress
                )
            artifact = outcome.metadata.get("artifact_id")
            whole_output = engine.get_artifact(artifact) if artifact else None
            return outcome

    result = run(command())
    if output is not None:
        _write_content(result, output)
    printing.print_json(result.to_dict()) if as_json else printing.print_result(result, whole_output)
    exit_on_failure(result)


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

    async def command() -> tuple[list[Tool], dict[Tool, str]]:
        async with context.obj.listing_engine() as engine:
            await engine.wait_for_pins()
            tools = engine.registry.by_tag(*tag) if tag else list(engine.registry)
            tools = [t for t in tools if source in (None, t.source) and _is_in_category(t, category)]
            return sorted(tools, key=listing_order), _unavailable_reasons(engine)

    tools, unavailable = run(command())
    if as_json:
        printing.print_json([_describe_tool(tool, unavailable) for tool in tools])
    else:
        printing.print_tools(tools, unavailable)


@tools_app.command("show")
def show_tool(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The tool.")], as_json: AsJson = False
) -> None:
    """Show a tool in detail."""

    async def command() -> None:
        async with context.obj.listing_engine() as engine:
            await engine.wait_for_pins()
            tools = engine.registry.candidates(name) or [engine.registry.find_tool(name)]
            for tool in tools:
                if as_json:
                    printing.print_json(_describe_tool(tool, _unavailable_reasons(engine)))
                else:
                    printing.print_tool(tool, engine)

    run(command())


@tools_app.command("search")
def search_tools(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(help="What the tool should be about.")],
    as_json: AsJson = False,
) -> None:
    """Find tools by words in their names, tags and descriptions; with the extra `semantic` by meaning too."""

    async def command() -> list[Tool]:
        async with context.obj.listing_engine() as engine:
            await engine.wait_for_pins()
            from ferrule.catalog.search import RegistryIndex

            index, text = RegistryIndex(engine.registry, engine.store.vectors), " ".join(words)
            await index.prepare(text)
            return [hit.tool for hit in index.search(text, 20)]

    tools = run(command())
    if as_json:
        printing.print_json([_describe_tool(tool, {}) for tool in tools])
    elif tools:
        printing.print_tools(tools, {})
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

    report = check_path(path) if path is not None else check_project(_require_project(context.obj))
    if as_json:
        problems = [printing.problem_to_dict(error) for error in report.errors]
        printing.print_json({"tools": [tool.id for tool in report.tools], "errors": problems})
    else:
        for error in report.errors:
            echo(indent_lines(str(error)))
        printing.print_check_summary(len(report.tools), "tool", len(report.errors))
    if report.errors:
        raise typer.Exit(1)


def _require_project(session: Session) -> FerruleConfig:
    config = session.config()
    if config.path is None:
        fail("No ferrule.toml here. Name the folder to check: ferrule tools validate tools")
    return config


def _unavailable_reasons(engine: ToolEngine) -> dict[Tool, str]:
    now = engine.registry.snapshot()
    return {tool: now.why_unavailable(tool) or "" for tool in now.unavailable}


def _is_in_category(tool: Tool, category: str | None) -> bool:
    if category is None:
        return True
    name, _, subcategory = category.partition("/")
    return str(tool.spec.category) == name and subcategory in ("", tool.spec.subcategory)


def _describe_tool(tool: Tool, unavailable: Mapping[Tool, str]) -> dict[str, Any]:
    spec = tool.spec
    return {
        "tool_id": spec.tool_id,
        "name": spec.name,
        "description": spec.description,
        "version": spec.version,
        "category": spec.category,
        "subcategory": spec.subcategory,
        "priority": spec.priority,
        "dependencies": spec.dependencies,
        "tags": spec.tags,
        "enabled": spec.enabled,
        "unavailable": unavailable.get(tool),
        "unavailable_actions": spec.unavailable_actions,
        "source": tool.source,
        "origin": tool.origin,
        "fingerprint": spec.fingerprint,
        "actions": [
            {
                "name": c.name,
                "description": c.description,
                "parameters": schema_without_secrets(c),
                "examples": examples_without_secrets(c),
            }
            for c in spec.capabilities
        ],
    }


def _write_content(result: ToolExecutionResult, path: Path) -> None:
    data = next((d for part in result.content if (d := getattr(part, "data", None)) is not None), None)
    path.write_bytes(data if data is not None else result.text.encode())
    print_error(f"ferrule: wrote {path}")


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
            echo(indent_lines(str(error)))
        printing.print_check_summary(len(valid), "skill", len(problems))
    if problems:
        raise typer.Exit(1)


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
