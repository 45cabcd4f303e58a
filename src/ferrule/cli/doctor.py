"""Looking at what Ferrule needs: is it there, and does it work?"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from ferrule import __version__
from ferrule.cli.session import Session, without_files
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import FerruleError
from ferrule.spec import Limits, Tool, ToolCapability, ToolSpec

PACKAGES = (
    "cloudpickle",
    "httpx",
    "jsonschema-rs",
    "mcp",
    "orjson",
    "pydantic",
    "pyyaml",
    "rich",
    "sqlalchemy",
    "typer",
    "watchfiles",
    "websockets",
)
EXTRAS = {"psycopg": "postgres"}


@dataclass(kw_only=True)
class Check:
    name: str
    ok: bool
    found: str
    advice: str = ""


async def examine(session: Session) -> list[Check]:
    """Every check there is; none of them stops the others."""
    checks = [
        Check(name="ferrule", ok=True, found=f"{__version__} at {sys.prefix}"),
        Check(name="python", ok=True, found=f"{platform.python_version()} on {platform.system()}"),
        *(_package(name) for name in PACKAGES),
        *(_extra(name, extra) for name, extra in EXTRAS.items()),
    ]
    try:
        engine = session.engine()
    except FerruleError as error:
        return [*checks, Check(name="project", ok=False, found=str(error))]
    async with engine:
        checks.append(_files(engine))
        checks.append(_dependencies(engine))
        checks.append(_set_up(engine))
        checks.append(await _store(engine))
    checks.append(await _worker())
    return checks


def _package(name: str) -> Check:
    try:
        return Check(name=name, ok=True, found=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name=name, ok=False, found="not installed", advice=f"pip install {name}")


def _extra(name: str, extra: str) -> Check:
    try:
        return Check(name=name, ok=True, found=metadata.version(name))
    except metadata.PackageNotFoundError:
        advice = f'only for Postgres: pip install "ferrule[{extra}]"'
        return Check(name=name, ok=True, found="not installed", advice=advice)


def _files(engine: ToolEngine) -> Check:
    errors = engine.load_errors
    advice = "see them with: ferrule tools validate" if errors else ""
    return Check(name="tools", ok=not errors, found=f"{len(engine.registry)}, {len(errors)} problems", advice=advice)


def _dependencies(engine: ToolEngine) -> Check:
    """Tools that another tool needs must be there."""
    unmet = [tool.id for tool in engine.registry.snapshot().unmet if not tool.needs]
    if not unmet:
        return Check(name="dependencies", ok=True, found="every tool has the tools it needs")
    found = f"unavailable: {', '.join(unmet)}"
    return Check(name="dependencies", ok=False, found=found, advice="see why with: ferrule tools list")


def _set_up(engine: ToolEngine) -> Check:
    """Tools in the box that wait for a key, a package or a folder are no fault."""
    waiting = [tool.id for tool in engine.registry.snapshot().unmet if tool.needs]
    if not waiting:
        return Check(name="box", ok=True, found="every tool in the box is set up")
    return Check(name="box", ok=True, found=f"not set up: {', '.join(waiting)}", advice="see: ferrule tools list")


async def _store(engine: ToolEngine) -> Check:
    try:
        total = (await engine.get_call_statistics()).total
        return Check(name="store", ok=True, found=f"{engine.store.location.shown}, {total:,} calls")
    except (FerruleError, OSError) as error:
        return Check(name="store", ok=False, found=str(error), advice="look at [store] url in ferrule.toml")


async def _worker() -> Check:
    """A sync function must run in a process of its own, or a time-out could not end it."""
    async with ToolEngine(without_files(ToolEngineConfig(auto_reload=False, builtin_tools=False))) as engine:
        engine.register(_probe())
        result = await engine.execute("probe", timeout=20)
    return Check(name="workers", ok=result.is_success, found="start and answer" if result.is_success else result.text)


def _probe() -> Tool:
    spec = ToolSpec(
        tool_id="probe",
        capabilities=[ToolCapability(name="probe", description="Answer from a worker process.")],
        limits=Limits(isolation="process"),
    )
    return Tool(spec=spec, handler="function", target=_Platform())


class _Platform:
    def function(self, action: str) -> object:
        return platform.python_version
