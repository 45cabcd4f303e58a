"""`ferrule.toml` and `FERRULE_*` variables: how a project says what its engine is like.

Sections are the names of the values they fill: `[engine]` a `ToolEngineConfig`, `[limits]` a `ConcurrencyConfig`,
`[store]` where records go, `[http]` which addresses tools may reach, `[agent]` what `ferrule ask` and `chat` are like,
`[tools]` what the tools in the box may use, `[[openapi]]` one OpenAPI document. A variable `FERRULE_STORE_URL` stands
for `url` in `[store]`, and wins over the file.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from ferrule.concurrency import ConcurrencyConfig
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.errors import LoadError, SetupError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.request import HttpRequestExecutor
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.names import did_you_mean
from ferrule.sources.openapi_source import OpenApiEntry
from ferrule.spec import Tool
from ferrule.store import Retention, ToolKnowledgeStore
from ferrule.tools.box import BoxConfig, box_tools

FILE_NAME = "ferrule.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSection:
    url: str | None = None
    """`sqlite:///calls.db`, `postgresql://…`; none: in memory."""
    max_age_days: float | None = None
    """Older records are forgotten."""
    max_records: int | None = None
    """Of more records the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSection:
    allow_private_addresses: bool = False
    """Let tools reach private, loopback and link-local addresses."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Hosts that may be reached whatever their address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSection:
    """Which calls need a person's word: `allow`, `ask` or `deny`, by tool, tag or effect."""

    tools: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=lambda: {"destructive": "ask"})
    default: str = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    model: str | None = None
    """`openai:gpt-5.4`, `anthropic:…`, `local`, `offline`; none: by the environment."""
    instructions: str = ""
    """What it is told before everything else."""
    tools: list[str] | None = None
    """The only tools it may use."""
    core_tools: list[str] = field(default_factory=list)
    """Shown to the model in full however many tools there are."""
    turns: int | None = 20
    calls: int | None = 100
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    """The most a run may cost, by the prices below."""
    input_price: float | None = None
    output_price: float | None = None
    """Of a million tokens, in whatever money."""
    strategy: str | None = None
    """`plan`, `loop`, `direct`, or `model` to let the model choose; none: the question decides."""
    workflow: Literal["simple", "langgraph", "auto"] = "simple"
    """What plans are done by: `langgraph` keeps checkpoints, and takes a second to load."""
    approval: ApprovalSection = field(default_factory=ApprovalSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class FerruleConfig:
    """All a project says about its engine."""

    engine_config: ToolEngineConfig = field(default_factory=ToolEngineConfig)
    limits: ConcurrencyConfig = field(default_factory=ConcurrencyConfig)
    store: StoreSection = field(default_factory=StoreSection)
    http: HttpSection = field(default_factory=HttpSection)
    agent: AgentSection = field(default_factory=AgentSection)
    tools: BoxConfig = field(default_factory=BoxConfig)
    root: Path = field(default_factory=Path)
    """Relative paths start here: the folder of the file."""
    path: Path | None = None
    """The file it was read from; none: there is no project."""

    @classmethod
    def read(cls, path: Path, environ: Mapping[str, str] = os.environ) -> FerruleConfig:
        """The configuration in a file, which must exist."""
        try:
            said = {"engine": {}, **tomllib.loads(path.read_text(encoding="utf-8"))}
        except FileNotFoundError:
            raise SetupError(f"There is no {path}. Make one with: ferrule init") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise LoadError(f"not valid TOML: {error}", path=path) from None
        if isinstance(said["engine"], dict):  # what a project has without saying so
            said["engine"] = {"skills_directories": ["skills"], "mcp_file": "mcp.json", **said["engine"]}
        return dataclasses.replace(cls._of(said, environ, path.parent, str(path)), path=path)

    @classmethod
    def find(cls, directory: Path, environ: Mapping[str, str] = os.environ) -> FerruleConfig:
        """The configuration of the project a folder belongs to; the defaults where there is none."""
        for folder in (directory, *directory.resolve().parents):
            path = folder / FILE_NAME
            if path.is_file() and _is_ours(path):
                return cls.read(path, environ)
        return cls._of({}, environ, directory, FILE_NAME)

    def engine(self, *, leave_records_to_others: bool = False, on_elicit: OnElicit | None = None) -> ToolEngine:
        """The engine it describes; see `ToolKnowledgeStore` for `leave_to_others`."""
        retention = Retention(
            max_age=None if self.store.max_age_days is None else timedelta(days=self.store.max_age_days),
            max_records=self.store.max_records,
        )
        url = self.store.url
        if url is not None and url.startswith("sqlite:///"):
            url = f"sqlite:///{self.root / url.removeprefix('sqlite:///')}"
        engine = ToolEngine(
            self.placed_engine_config,
            store=ToolKnowledgeStore(url, retention=retention, leave_to_others=leave_records_to_others),
            concurrency=self.limits,
            address_guard=self.address_guard,
            on_elicit=on_elicit,
        )
        if self.engine_config.builtin_tools:
            engine.register(*self.box_tools(engine))
        if self.tools.http_request.secrets:
            engine.register_executor("http_request", HttpRequestExecutor(engine.address_guard, self.tools.http_request))
        return engine

    def box_tools(self, engine: ToolEngine) -> list[Tool]:
        """The tools in the box that the project sets up, or could."""
        said = self.engine_config
        deciding = [
            FILE_NAME,
            said.tools_directory,
            *said.skills_directories,
            *([said.mcp_file] if said.mcp_file else []),
        ]
        protected = [*deciding, *(entry.source for entry in said.openapi)]
        tools = self.tools
        if tools.ask_model.model is None:
            tools = dataclasses.replace(tools, ask_model=dataclasses.replace(tools.ask_model, model=self.agent.model))
        return box_tools(tools, engine=engine, root=self.root, protected=protected)

    @property
    def address_guard(self) -> AddressGuard:
        return AddressGuard(
            allow_private=self.http.allow_private_addresses, allowed_hosts=tuple(self.http.allowed_hosts)
        )

    @property
    def placed_engine_config(self) -> ToolEngineConfig:
        """`engine_config` with paths that start at the root."""
        said = self.engine_config
        return dataclasses.replace(
            said,
            tools_directory=str(self.root / said.tools_directory),
            mcp_file=None if said.mcp_file is None else str(self.root / said.mcp_file),
            skills_directories=tuple(str(self.root / folder) for folder in said.skills_directories),
            openapi=tuple(entry.under(self.root) for entry in said.openapi),
        )

    @classmethod
    def _of(cls, said: dict[str, Any], environ: Mapping[str, str], root: Path, origin: str) -> FerruleConfig:
        sections: dict[str, type] = {
            "engine": ToolEngineConfig,
            "limits": ConcurrencyConfig,
            "store": StoreSection,
            "http": HttpSection,
            "agent": AgentSection,
            "tools": BoxConfig,
        }
        for name in said:
            if name not in sections and name != "openapi":
                raise SetupError(f"{origin}: there is no section [{name}].{did_you_mean(name, (*sections, 'openapi'))}")
        values = {
            name: _section(kind, name, said.get(name, {}), _variables(kind, name, environ), origin)
            for name, kind in sections.items()
        }
        engine_config = values.pop("engine")
        documents = _documents(said.get("openapi", []), origin)
        if documents:
            engine_config = dataclasses.replace(engine_config, openapi=(*engine_config.openapi, *documents))
        return cls(engine_config=engine_config, root=root, **values)


def _documents(said: Any, origin: str) -> list[OpenApiEntry]:
    if not isinstance(said, list):
        raise SetupError(f"{origin}: openapi is a list of sections: write [[openapi]] above each")
    for each in said:
        if not isinstance(each, dict) or not each.get("source"):
            raise SetupError(f'{origin}: [[openapi]] needs a source: write source = "petstore.yaml", or a URL')
    return [_section(OpenApiEntry, "openapi", each, {}, origin) for each in said]


def _is_ours(path: Path) -> bool:
    """A file that somebody else left in a folder above must not decide what we run."""
    return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)


def _section(kind: type, name: str, said: Any, variables: dict[str, str], origin: str) -> Any:
    if not isinstance(said, dict):
        raise SetupError(f"{origin}: [{name}] must be a section with keys, not {said!r}")
    known = {f.name for f in dataclasses.fields(kind)}
    for key in said:
        if key not in known:
            raise SetupError(f"{origin}: there is no {key!r} in [{name}].{did_you_mean(key, known)}")
    hints = typing.get_type_hints(kind)
    values = {key: _value(hints[key], f"{name}.{key}", value, origin) for key, value in said.items()}
    for key, text in variables.items():
        values[key] = _value(hints[key], f"{name}.{key}", text, f"FERRULE_{name}_{key}".upper())
    try:
        return kind(**values)
    except SetupError as error:
        raise SetupError(f"{origin}: [{name}]: {error}") from None


def _value(hint: Any, place: str, value: Any, origin: str) -> Any:
    from pydantic import TypeAdapter, ValidationError  # 80 ms to import: only when a project is opened

    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _section(hint, place, value, {}, origin)
    if (named := _kind_of_named(hint)) is not None and isinstance(value, dict):
        return {name: _section(named, f"{place}.{name}", each, {}, origin) for name, each in value.items()}
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        # Only what is wrong is shown: a secret may stand beside it.
        wrong = error.errors()[0]
        where = ".".join([place, *(str(part) for part in wrong["loc"] if not isinstance(hint, types.UnionType))])
        raise SetupError(f"{origin}: {where}: {wrong['msg']}, not {wrong['input']!r}") from None


def _kind_of_named(hint: Any) -> type | None:
    """The kind of sections that a key holds by name: `dict[str, Channel]`."""
    inner = typing.get_args(hint)[1] if typing.get_origin(hint) is dict else None
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _variables(kind: type, section: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`FERRULE_<SECTION>_<KEY>` for every key whose value fits one variable."""
    found = {}
    for key, hint in typing.get_type_hints(kind).items():
        value = environ.get(f"FERRULE_{section}_{key}".upper())
        if value is not None and _is_plain(hint):
            found[key] = value
    return found


def _is_plain(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return all(_is_plain(part) for part in typing.get_args(hint))
    return hint in (str, int, float, bool, type(None)) or typing.get_origin(hint) is typing.Literal
