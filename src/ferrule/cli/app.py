"""The commands."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule import __version__
from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.cli import doctor as examination
from ferrule.cli import show
from ferrule.cli.agents import ask, chat, failures_app, runs_app
from ferrule.cli.arguments import read_arguments
from ferrule.cli.asking import ask_at_the_terminal
from ferrule.cli.mcp import mcp_app
from ferrule.cli.open_schema import open_examples, open_schema
from ferrule.cli.openapi import openapi_app
from ferrule.cli.progress import ProgressLine
from ferrule.cli.project import make_project
from ferrule.cli.session import USAGE, Session, exit_with, fail, run
from ferrule.cli.skills import skills_app
from ferrule.cli.terminal import PlainFormatter, complain, say
from ferrule.cli.validate import check_path, check_project
from ferrule.config import FerruleConfig
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError, SetupError
from ferrule.search import RegistryIndex
from ferrule.spec import Tool

app = typer.Typer(
    name="ferrule",
    help="One governed runtime for every tool a language model may use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tools_app = typer.Typer(help="See which tools there are.", no_args_is_help=True)
app.add_typer(tools_app, name="tools")
app.add_typer(skills_app, name="skills")
app.add_typer(mcp_app, name="mcp")
app.add_typer(openapi_app, name="openapi")
app.add_typer(runs_app, name="runs")
app.add_typer(failures_app, name="failures")
app.command()(ask)
app.command()(chat)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
session = Session(None)


def main() -> None:
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ferrule {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The ferrule.toml to use; else the nearest one upwards.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens to standard error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    # Only our own lines: those of HTTP libraries hold whole headers, cookies and addresses.
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(PlainFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    logging.getLogger("ferrule").setLevel(logging.DEBUG if verbose else logging.WARNING)
    global session
    session = context.obj = Session(config)


@app.command()
def call(
    name: Annotated[str, typer.Argument(help="The tool, or tool__action where it has several.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments; KEY:=JSON for what is not text.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", "-p", help="All arguments as a JSON object; @FILE, or - for stdin.")
    ] = None,
    action: Annotated[str | None, typer.Option("--action", "-a", help="Which action of the tool.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", "-t", min=0.001, help="Seconds it may run.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result's image, audio or file here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool.

    Exit codes: 0 done, 1 the tool failed, 2 wrong arguments, 3 no such tool, 4 timed out, 5 rejected,
    6 not permitted, 130 stopped by Ctrl-C.
    """

    async def story() -> ToolExecutionResult:
        read = read_arguments(arguments or (), params)
        line = ProgressLine(enabled=not as_json)
        async with session.engine(on_elicit=ask_at_the_terminal(line.hidden)) as engine:
            _say_what_did_not_load(engine)
            with line:
                context = ToolExecutionContext(caller_type="direct", caller_id="cli")
                return await engine.execute(
                    name, read, context, action=action, timeout=timeout, on_progress=line.progress
                )

    result = run(story())
    if output is not None:
        _write_part(result, output)
    show.as_json(result.to_dict()) if as_json else show.result(result)
    exit_with(result)


@tools_app.command("list")
def list_tools(
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only tools with this tag.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only tools of this source.")] = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only tools of this category, or category/subcategory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tools."""

    async def story() -> tuple[list[Tool], dict[Tool, str]]:
        async with session.engine() as engine:
            _say_what_did_not_load(engine)
            found = engine.registry.by_tag(*tag) if tag else list(engine.registry)
            found = [t for t in found if source in (None, t.source) and _is_in(t, category)]
            return sorted(found, key=lambda t: (-t.spec.priority, t.priority, t.id)), _unavailable(engine)

    found, unavailable = run(story())
    if as_json:
        show.as_json([_described(tool, unavailable) for tool in found])
    else:
        show.tools(found, unavailable)


@tools_app.command("show")
def show_tool(name: Annotated[str, typer.Argument(help="The tool.")], as_json: AsJson = False) -> None:
    """Show all about a tool."""

    async def story() -> None:
        async with session.engine() as engine:
            found = engine.registry.candidates(name) or _found_by_other_name(engine, name)
            for tool in found:
                show.as_json(_described(tool, _unavailable(engine))) if as_json else show.tool(tool, engine)

    run(story())


@tools_app.command("search")
def search_tools(
    words: Annotated[list[str], typer.Argument(help="What the tool should be about.")], as_json: AsJson = False
) -> None:
    """Find tools by words in their names, tags and descriptions."""

    async def story() -> list[Tool]:
        async with session.engine() as engine:
            return [hit.tool for hit in RegistryIndex(engine.registry).search(" ".join(words), 20)]

    found = run(story())
    if as_json:
        show.as_json([_described(tool, {}) for tool in found])
    elif found:
        show.tools(found, {})
    else:
        fail(f"No tool is about {' '.join(words)!r}. See them all with: ferrule tools list", code=1)


@tools_app.command("validate")
def validate_tools(
    path: Annotated[
        Path | None, typer.Argument(help="A folder of tools, a file of tools or an OpenAPI document; else the project.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check files of tools and print all problems at once. Python files are run.

    Without a path: all files of the project, with its skills, servers and OpenAPI documents.
    """
    if path is not None and not path.exists():
        fail(f"There is no folder or file {str(path)!r}.", code=USAGE)
    report = check_path(path) if path is not None else check_project(_project())
    if as_json:
        problems = [show.problem(error) for error in report.errors]
        show.as_json({"tools": [tool.id for tool in report.tools], "errors": problems})
    else:
        for error in report.errors:
            say(error)
        show.verdict(len(report.tools), "tool", len(report.errors))
    if report.errors:
        raise typer.Exit(1)


@app.command()
def calls(
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Only of this conversation.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest calls."""

    async def story() -> Any:
        async with session.store() as store:
            return await store.query_call_records(
                tool_name=tool,
                conversation_id=conversation,
                is_success=False if failed else None,
                since=_moment(since),
                limit=limit,
            )

    records = run(story())
    show.as_json([record.to_dict() for record in records]) if as_json else show.calls(records)


@app.command()
def stats(
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how tools did and how long they took."""

    async def story() -> Any:
        async with session.store() as store:
            return await store.get_call_statistics(tool_name=tool, since=_moment(since))

    found = run(story())
    show.as_json(found.to_dict()) if as_json else show.statistics(found)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Where; made if it is not there.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Make a project with example tools."""
    try:
        made = make_project(directory, force=force)
    except (SetupError, OSError) as error:
        fail(str(error), code=USAGE)
    for path in made:
        say(f"made {path}")
    where = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    say(f"\nNext: {where}ferrule tools list\n      ferrule call add a=1 b=2")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check that everything works."""
    checks = run(examination.examine(session))
    if as_json:
        show.as_json([vars(check) for check in checks])
    else:
        for check in checks:
            say(f"{'ok  ' if check.ok else 'BAD '} {check.name:<14} {check.found}")
            if check.advice:
                say(f"     {'':<14} {check.advice}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def _say_what_did_not_load(engine: ToolEngine) -> None:
    for error in engine.load_errors:
        complain(f"ferrule: not loaded: {error}")


def _project() -> FerruleConfig:
    try:
        config = session.config()
    except FerruleError as error:
        fail(str(error), code=USAGE)
    if config.path is None:
        fail("There is no ferrule.toml here. Name the folder to check: ferrule tools validate tools", code=USAGE)
    return config


def _unavailable(engine: ToolEngine) -> dict[Tool, str]:
    now = engine.registry.snapshot()
    return {tool: now.why_unavailable(tool) or "" for tool in now.unmet}


def _is_in(tool: Tool, category: str | None) -> bool:
    if category is None:
        return True
    wanted, _, part = category.partition("/")
    return str(tool.spec.category) == wanted and part in ("", tool.spec.subcategory)


def _found_by_other_name(engine: ToolEngine, name: str) -> Sequence[Tool]:
    return [engine.registry.find_tool(name)]


def _described(tool: Tool, unavailable: Mapping[Tool, str]) -> dict[str, Any]:
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
        "source": tool.source,
        "origin": tool.origin,
        "fingerprint": spec.fingerprint,
        "actions": [
            {
                "name": c.name,
                "description": c.description,
                "parameters": open_schema(c),
                "examples": open_examples(c),
            }
            for c in spec.capabilities
        ],
    }


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _moment(said: str | None) -> datetime | None:
    """`2h` ago, or a date and time."""
    if said is None:
        return None
    if said[:-1].isdigit() and said[-1] in _UNITS:
        return datetime.now(UTC) - timedelta(**{_UNITS[said[-1]]: int(said[:-1])})
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise SetupError(f"--since takes 10m, 2h, 7d or a date such as 2026-01-31, not {said!r}.") from None
    return moment.astimezone() if moment.tzinfo is None else moment


def _write_part(result: ToolExecutionResult, path: Path) -> None:
    data = next((d for part in result.content if (d := getattr(part, "data", None)) is not None), None)
    path.write_bytes(data if data is not None else result.text.encode())
    complain(f"ferrule: wrote {path}")
