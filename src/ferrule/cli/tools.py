"""The commands `ferrule call` and `ferrule tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.elicitation import terminal_elicitation
from ferrule.cli.options import (
    ActionName,
    ApprovalOfCall,
    ArgumentPairs,
    ArgumentsAsJson,
    AsJson,
    CallTimeout,
    ToolName,
)
from ferrule.cli.printing import examples_without_secrets, schema_without_secrets
from ferrule.cli.session import EXIT_USAGE, Session, exit_on_failure, fail, parse_arguments, run
from ferrule.cli.terminal import ProgressLine, echo, print_error
from ferrule.config import FerruleConfig
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.spec import Tool, listing_order
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError
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
            tools = engine.registry.candidates(name) or _find_by_other_name(engine, name)
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
        fail(f"No such folder or file: {str(path)!r}.", code=EXIT_USAGE)
    from ferrule.cli.project import check_path, check_project

    report = check_path(path) if path is not None else check_project(_require_project(context.obj))
    if as_json:
        problems = [printing.problem_to_dict(error) for error in report.errors]
        printing.print_json({"tools": [tool.id for tool in report.tools], "errors": problems})
    else:
        for error in report.errors:
            echo(error)
        printing.print_check_summary(len(report.tools), "tool", len(report.errors))
    if report.errors:
        raise typer.Exit(1)


def _require_project(session: Session) -> FerruleConfig:
    try:
        config = session.config()
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)
    if config.path is None:
        fail("No ferrule.toml here. Name the folder to check: ferrule tools validate tools", code=EXIT_USAGE)
    return config


def _unavailable_reasons(engine: ToolEngine) -> dict[Tool, str]:
    now = engine.registry.snapshot()
    return {tool: now.why_unavailable(tool) or "" for tool in now.unavailable}


def _is_in_category(tool: Tool, category: str | None) -> bool:
    if category is None:
        return True
    name, _, subcategory = category.partition("/")
    return str(tool.spec.category) == name and subcategory in ("", tool.spec.subcategory)


def _find_by_other_name(engine: ToolEngine, name: str) -> Sequence[Tool]:
    return [engine.registry.find_tool(name)]


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
