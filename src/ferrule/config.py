"""`ferrule.toml` and `FERRULE_*` variables: how a project sets up its engine and its agent.

Sections are named like the values they fill: `[engine]` a `ToolEngineConfig`, `[limits]` a `ConcurrencyConfig`,
`[store]` where records go, `[http]` which addresses tools may reach, `[agent]` what `ferrule ask` and `chat` use,
`[tools]` what bundled tools and plugins may use, `[policy]` which calls are allowed, `[hub]` a `HubConfig`,
`[server]` what `ferrule serve` uses, `[telemetry]` where traces go, `[cluster]` which Ray cluster is used, `[prices]` a
`PriceList`, `[[budgets]]` a `Budget` each, `[[openapi]]` one OpenAPI document each. A variable `FERRULE_STORE_URL`
stands for `url` in `[store]`, and wins over the file.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ferrule.catalog.parameter_roles import Role
from ferrule.concurrency import ConcurrencyConfig
from ferrule.core.elicitation import OnElicit
from ferrule.core.names import did_you_mean
from ferrule.core.permission import CallPolicy, EffectTier, Verdict
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.core.settings import SettingsOrigin, read_item, read_section
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.engine.plugins import PluginContext, ToolPlugins, find_plugin_entries
from ferrule.errors import LoadError, SetupError
from ferrule.http.guard import AddressGuard
from ferrule.hub import HubConfig
from ferrule.kinds.executors import CLUSTER, load_plugin_executor
from ferrule.kinds.http_request import HttpRequestConfig, HttpRequestExecutor
from ferrule.kinds.openapi.tool import OpenApiEntry
from ferrule.policy.budgets import Budget
from ferrule.policy.policy import Policy, Rule, load_policy
from ferrule.policy.provenance import ProvenanceRules, UntrustedTargets
from ferrule.store import Retention, ToolKnowledgeStore

T = TypeVar("T")

FILE_NAME = "ferrule.toml"
PROJECT_DEFAULTS: Mapping[str, Any] = {"skills_directories": ["skills"], "mcp_file": "mcp.json"}
"""What a `ferrule.toml` need not say in `[engine]`."""


class _Section(BaseModel):
    # Built when it is first read: a file has few of the sections, and starting a command would build all of them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class StoreSection(_Section):
    url: str | None = None
    """`sqlite:///calls.db`, `postgresql://…`; none: in memory."""
    max_age_days: float | None = None
    """Older records are deleted."""
    max_records: int | None = None
    """Of more records the oldest are deleted."""


class HttpSection(_Section):
    allow_private_addresses: bool = False
    """Let tools reach private, loopback and link-local addresses."""
    allowed_hosts: list[str] = []
    """Hosts that may be reached whatever their address."""


class PolicySection(_Section):
    """Which calls are allowed, and which need a person's approval; the first rule that matches decides."""

    rules: tuple[Rule, ...] = ()
    default: Verdict | None = None
    """`allow`, `ask` or `deny`; none: ask before a destructive call that a model chose, allow everything else."""
    trusted_skills: dict[str, str] = {}
    """Skills and the digests of their files, as `ferrule skills list --json` prints them; what they list as
    `allowed-tools` needs no approval while they are active.
    """
    untrusted_targets: UntrustedTargets = "ask"
    """`ask`, `deny` or `allow`: for a call of an agent whose target (a recipient, a path) comes from what a tool has
    returned, not from the user.
    """
    own_domains: list[str] = []
    """Your own domains: of a person whom the user has named, an address under these is known."""
    trusted_output: list[str] = []
    """Tools whose results count like what the user wrote, such as a contact list: names and patterns."""
    parameter_roles: dict[str, Role] = {}
    """By `tool.parameter`, or a pattern: `target` (whom, where, which) or `content`, where a tool does not say it."""
    provider: str | None = None
    """The name of a policy that an installed package provides; it gets the other keys."""

    def build(self) -> CallPolicy:
        if self.provider is not None:
            return load_policy(
                self.provider, {name: getattr(self, name) for name in ("rules", "default", "trusted_skills")}
            )
        provenance = ProvenanceRules(
            untrusted_targets=self.untrusted_targets,
            own_domains=tuple(self.own_domains),
            trusted_output=tuple(self.trusted_output),
            parameter_roles=self.parameter_roles,
        )
        rules, skills = self.rules, self.trusted_skills
        return Policy(rules=rules, default=self.default, trusted_skills=skills, provenance=provenance)


class AgentSection(_Section):
    model: str | None = None
    """`openai:gpt-5.4`, `anthropic:…`, `ollama:…`, `offline`; none: by the environment."""
    instructions: str = ""
    """The beginning of its system prompt."""
    tools: list[str] | None = None
    """The only tools it may use."""
    core_tools: list[str] = []
    """Shown to the model in full however many tools there are."""
    turns: int | None = 20
    calls: int | None = 100
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    """The most a run may cost, by the prices below."""
    input_price: float | None = None
    output_price: float | None = None
    """Of a million tokens, in any currency."""
    strategy: str | None = None
    """`plan`, `loop`, `direct`, or `model` to let the model choose; none: the loop."""
    workflow: Literal["simple", "langgraph", "auto"] = "simple"
    """What runs plans: `langgraph` takes a second to load."""


class VirtualServerSection(_Section):
    """A selection of tools for one kind of MCP client, and how they are shown."""

    tools: list[str] | None = None
    """Names and patterns; none: all."""
    search: bool = False
    """Show two tools, `search_tools` and `call_tool`, which find and call the others."""
    plain_names: bool = False
    """Show actions and prompts of MCP servers under their own names, where these are unique."""


class OAuthSection(_Section):
    """Whose tokens `ferrule serve` accepts besides its own."""

    issuer: str
    """The address of the authorization server, as its tokens name it."""
    audience: str
    """The address of this server, as tokens must name it: `https://tools.example.com/mcp`."""
    jwks_url: str | None = None
    """Where the issuer's keys are; none: where its own description says."""
    roles: dict[str, str] = {
        "ferrule:read": "viewer",
        "ferrule:call": "caller",
        "ferrule:approve": "approver",
        "ferrule:admin": "admin",
    }
    """The roles that scopes give."""
    name_claim: str = "name"
    """The claim by which a user is addressed; who a user is, `iss` and `sub` say."""
    tenant_claim: str | None = None
    """The claim that names the tenant of a user; none: all users belong to none."""
    tools: list[str] | None = None
    """The only tools that these clients may use."""
    max_effect: EffectTier = "destructive"


class TenantLimitSection(_Section):
    """How many calls all tokens of a tenant together may make."""

    rate: float | None = Field(default=None, gt=0)
    """Calls a minute."""
    concurrent: int | None = Field(default=None, gt=0)
    """Calls at the same time."""


class ServerSection(_Section):
    """What `ferrule serve` uses."""

    host: str = "127.0.0.1"
    port: int = 8321
    workers: int = 1
    """Processes; each has its own slots and MCP servers."""
    allowed_hosts: list[str] = []
    """The host names that requests may be for; none: any, or on loopback only the names of this machine."""
    allowed_origins: list[str] = []
    """Other sites whose pages may make requests, such as `https://chat.example.com`."""
    trusted_proxies: list[str] = []
    """Addresses of proxies whose forwarded headers are believed."""
    internal_url: str | None = None
    """Where the other servers of the store reach the internal listener, such as `http://10.0.0.5`; none: the address
    that it listens on. Without a port, the port that it listens on."""
    internal_host: str | None = None
    """The address that the internal listener for the other servers of the store listens on; none: `host`, unless
    HTTPS is served without an `internal_url`."""
    internal_port: int = Field(default=0, ge=0, le=65_535)
    """The port of the internal listener; 0: any that is free. Each further worker has the next one that is free."""
    internal_secrets: list[str] = []
    """By which the servers of a store know each other, one or two: each server asks with the first, and accepts both.
    Without any, each server makes its own and stores it."""
    max_body_size: int = 16 * 1024 * 1024
    """Of a request, in bytes."""
    models: list[str] = []
    """Models that clients may choose for a question instead of the one of `[agent]`, which costs what they cost."""
    tenant_limits: dict[str, TenantLimitSection] = {}
    """For all tokens of a tenant together, by the tenant's name; `*` is for each tenant without an entry."""
    oauth: OAuthSection | None = None
    virtual_servers: dict[str, list[str] | VirtualServerSection] = {}
    """Selections of tools for MCP clients, by name: `/mcp/NAME` offers only these."""

    @field_validator("internal_url")
    @classmethod
    def _check_internal_url(cls, url: str | None) -> str | None:
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"must be scheme, host and port, such as http://10.0.0.5:8321, not {url!r}")
        return url.rstrip("/")

    @field_validator("internal_secrets")
    @classmethod
    def _check_internal_secrets(cls, values: list[str]) -> list[str]:
        if len(values) > 2 or not all(re.fullmatch(r"[A-Za-z0-9_-]{32,}", each) for each in values):
            raise ValueError("must be one or two texts of at least 32 letters, digits, - and _")
        return values

    def virtual_server(self, name: str) -> VirtualServerSection:
        """Return the selection of this name. Raises SetupError for an unknown name."""
        if name not in self.virtual_servers:
            hint = did_you_mean(name, self.virtual_servers)
            raise SetupError(f"There is no virtual server {name!r}.{hint} Add it to [server.virtual_servers].")
        section = self.virtual_servers[name]
        return section if isinstance(section, VirtualServerSection) else VirtualServerSection(tools=section)


class TelemetrySection(_Section):
    """Where traces are sent, and what they contain; the variables `OTEL_*` work too."""

    endpoint: str | None = None
    """A collector for OTLP over HTTP, such as `http://localhost:4318`; none: no traces are made."""
    headers: dict[str, str] = {}
    """What the collector needs, such as a key."""
    service_name: str = "ferrule"
    content: bool = True
    """Whether spans have questions, answers, arguments and results; without secrets in any case."""
    max_content: int = 8_192
    """Characters of each of them."""
    openinference: bool = False
    """Add the names of OpenInference to those of OpenTelemetry."""
    sample_ratio: float | None = None
    """The part of the traces that is sent, 0 to 1; none: what `OTEL_TRACES_SAMPLER` says, or all."""


class ClusterSection(_Section):
    """The Ray cluster that tools for a cluster, and `ferrule batch run --on ray`, use."""

    address: str | None = None
    """`host:port`, `ray://host:10001`, `auto` for the one of this machine, `local` to start one; none: no cluster."""
    runtime_env: dict[str, Any] = {}
    """What Ray provides on the nodes: `working_dir`, `py_modules`, `pip`, `env_vars` …, as Ray documents it."""
    environment: list[str] = []
    """Further variables that workers get: those of Ferrule, and keys and addresses of models, they get anyway."""

    def runtime_env_under(self, root: Path) -> dict[str, Any]:
        """Return the runtime environment, with paths that start at the root."""
        env = dict(self.runtime_env)
        if "working_dir" in env and "://" not in str(env["working_dir"]):
            env["working_dir"] = str((root / str(env["working_dir"])).absolute())
        if isinstance(env.get("py_modules"), list):
            env["py_modules"] = [m if "://" in str(m) else str((root / str(m)).absolute()) for m in env["py_modules"]]
        return env


SECTIONS: Mapping[str, type] = {
    "engine": ToolEngineConfig,
    "limits": ConcurrencyConfig,
    "store": StoreSection,
    "http": HttpSection,
    "agent": AgentSection,
    "policy": PolicySection,
    "hub": HubConfig,
    "server": ServerSection,
    "prices": PriceList,
    "telemetry": TelemetrySection,
    "cluster": ClusterSection,
}
"""The sections with fixed keys; `[tools]`, `[[openapi]]` and `[[budgets]]` are read on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSection:
    workspace: str | None = None
    """The folder whose files tools may read and change."""
    protected_paths: tuple[str, ...] | None = None
    """Patterns of paths in it that tools may read but not change; None: the default ones."""
    secret_paths: tuple[str, ...] | None = None
    """Patterns of paths in it that tools may not read either; None: the default ones."""
    http_request: HttpRequestConfig = field(default_factory=HttpRequestConfig)
    plugins: Mapping[str, Any] = field(default_factory=dict)
    """The sections `[tools.NAME]` of bundled tools and plugins, which each plugin reads itself when it is loaded."""
    origin: SettingsOrigin = field(default_factory=lambda: SettingsOrigin(FILE_NAME))


@dataclass(frozen=True, slots=True, kw_only=True)
class FerruleConfig:
    """The whole configuration of a project."""

    engine_config: ToolEngineConfig = field(default_factory=ToolEngineConfig)
    limits: ConcurrencyConfig = field(default_factory=ConcurrencyConfig)
    store: StoreSection = field(default_factory=StoreSection)
    http: HttpSection = field(default_factory=HttpSection)
    agent: AgentSection = field(default_factory=AgentSection)
    tools: ToolsSection = field(default_factory=ToolsSection)
    policy: PolicySection = field(default_factory=PolicySection)
    hub: HubConfig = field(default_factory=HubConfig)
    server: ServerSection = field(default_factory=ServerSection)
    prices: PriceList = field(default_factory=PriceList)
    budgets: tuple[Budget, ...] = ()
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    root: Path = field(default_factory=Path)
    """The folder of the file, where relative paths start."""
    path: Path | None = None
    """The file it was read from; None without a project."""

    @classmethod
    def read(cls, path: Path, environ: Mapping[str, str] = os.environ) -> FerruleConfig:
        """Read the configuration in a file, which must exist."""
        try:
            text = path.read_text(encoding="utf-8")
            document = {"engine": {}, **tomllib.loads(text)}
        except FileNotFoundError:
            raise SetupError(f"There is no {path}. Make one with: ferrule init") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            line = re.search(r"at line (\d+)", str(error))
            raise LoadError(f"not valid TOML: {error}", path=path, line=int(line[1]) if line else None) from None
        if isinstance(document["engine"], dict):
            document["engine"] = {**PROJECT_DEFAULTS, **document["engine"]}
        origin = SettingsOrigin.of_text(str(path), text)
        return dataclasses.replace(cls._from_document(document, environ, path.parent, origin), path=path)

    @classmethod
    def find(cls, directory: Path, environ: Mapping[str, str] = os.environ) -> FerruleConfig:
        """Read the configuration of the project that a folder belongs to; without one, return the defaults."""
        for folder in (directory, *directory.resolve().parents):
            path = folder / FILE_NAME
            if path.is_file() and _is_trusted_file(path):
                return cls.read(path, environ)
        return cls._from_document({}, environ, directory, SettingsOrigin(FILE_NAME))

    @classmethod
    def defaults_for_folder(cls, directory: Path) -> FerruleConfig:
        """Return the configuration of a project in this folder whose `ferrule.toml` would be empty."""
        return cls._from_document({"engine": dict(PROJECT_DEFAULTS)}, {}, directory, SettingsOrigin(FILE_NAME))

    def for_untrusted_folder(self, environ: Mapping[str, str] = os.environ) -> FerruleConfig:
        """Return the configuration for an untrusted folder, which ignores its `ferrule.toml` and all files but YAML."""
        config = self._from_document({}, environ, self.root, SettingsOrigin(FILE_NAME))
        directory = self.root / self.engine_config.tools_directory
        is_inside = directory.resolve().is_relative_to(self.root.resolve())
        engine_config = dataclasses.replace(
            config.engine_config,
            for_untrusted_folder=True,
            tools_directory=self.engine_config.tools_directory if is_inside else config.engine_config.tools_directory,
            auto_reload=False,
            watch_for_changes=False,
        )
        return dataclasses.replace(config, engine_config=engine_config, path=self.path)

    def engine(
        self, *, defer_record_import: bool = False, on_elicit: OnElicit | None = None, tool_name: str | None = None
    ) -> ToolEngine:
        """Make the engine. `defer_record_import` is `defer_import` of `ToolKnowledgeStore`.

        With `tool_name`, only the plugins that provide this tool are loaded at first; the others when a tool is
        looked up that is not there.
        """
        retention = Retention(
            max_age=None if self.store.max_age_days is None else timedelta(days=self.store.max_age_days),
            max_records=self.store.max_records,
        )
        url = self.store.url if self.store_file is None else f"sqlite:///{self.store_file}"
        engine = ToolEngine(
            self.engine_config_with_paths,
            store=ToolKnowledgeStore(url, retention=retention, defer_import=defer_record_import),
            concurrency=self.limits,
            address_guard=self.address_guard,
            on_elicit=on_elicit,
            policy=self.policy.build(),
            prices=self.price_list,
            budgets=self.budgets,
        )
        if self.tools.http_request.secrets:
            engine.register_executor("http_request", HttpRequestExecutor(engine.address_guard, self.tools.http_request))
        if self.cluster.address is not None:
            runtime_env = self.cluster.runtime_env_under(self.root)
            executor = load_plugin_executor(CLUSTER, self.cluster.address, runtime_env=runtime_env)
            if executor is None:
                raise SetupError("This installation of Ferrule lists no executor for [cluster]: install it again.")
            engine.register_executor(CLUSTER, executor)
        if self.engine_config.builtin_tools:
            engine.use_plugins(ToolPlugins(self.tool_setup(engine)), tool_name)
        return engine

    @property
    def store_file(self) -> Path | None:
        """Return the file of a SQLite store; None for another one."""
        url = self.store.url
        return self.root / url.removeprefix("sqlite:///") if url is not None and url.startswith("sqlite:///") else None

    def tool_setup(self, engine: ToolEngine) -> PluginContext:
        """Return what plugins use to set up their tools."""
        config = self.engine_config
        protected = [config.tools_directory, *config.skills_directories, *(entry.source for entry in config.openapi)]
        secret = [FILE_NAME, *([config.mcp_file] if config.mcp_file else ()), *engine.store.location.files]
        return PluginContext(
            engine=engine,
            root=self.root,
            workspace=self.tools.workspace,
            protected=protected,
            secret=secret,
            protected_paths=self.tools.protected_paths,
            secret_paths=self.tools.secret_paths,
            default_model=self.agent.model,
            read_section=self._read_plugin_section,
        )

    def _read_plugin_section(self, name: str, config_type: type[T]) -> T:
        return read_section(config_type, f"tools.{name}", self.tools.plugins.get(name, {}), self.tools.origin)

    @property
    def price_list(self) -> PriceList:
        """Return the prices; a model without an entry costs what `[agent]` says."""
        into, out = self.agent.input_price, self.agent.output_price
        if into is None and out is None:
            return self.prices
        other = ModelPrice(input=into or 0.0, output=out or 0.0)
        return dataclasses.replace(self.prices, models={**self.prices.models, "*": other})

    @property
    def address_guard(self) -> AddressGuard:
        return AddressGuard(
            allow_private=self.http.allow_private_addresses, allowed_hosts=tuple(self.http.allowed_hosts)
        )

    @property
    def engine_config_with_paths(self) -> ToolEngineConfig:
        """Return `engine_config` with paths that start at the root."""
        config = self.engine_config
        return dataclasses.replace(
            config,
            tools_directory=str(self.root / config.tools_directory),
            mcp_file=None if config.mcp_file is None else str(self.root / config.mcp_file),
            skills_directories=tuple(str(self.root / folder) for folder in config.skills_directories),
            openapi=tuple(entry.resolve_path(self.root) for entry in config.openapi),
        )

    @classmethod
    def _from_document(
        cls, document: dict[str, Any], environ: Mapping[str, str], root: Path, origin: SettingsOrigin
    ) -> FerruleConfig:
        names = (*SECTIONS, "tools", "openapi", "budgets")
        for name in document:
            if name not in names:
                raise SetupError(f"{origin.at(name)}: there is no section [{name}].{did_you_mean(name, names)}")
        values: dict[str, Any] = {
            name: read_section(config_type, name, document.get(name, {}), origin, environ)
            for name, config_type in SECTIONS.items()
        }
        engine_config = values.pop("engine")
        if documents := _read_list(OpenApiEntry, "openapi", document, origin):
            engine_config = dataclasses.replace(engine_config, openapi=(*engine_config.openapi, *documents))
        tools = _read_tools_section(document.get("tools", {}), origin, environ)
        budgets = _read_list(Budget, "budgets", document, origin)
        names_of_budgets = [budget.name for budget in budgets]
        if double := next((name for name in names_of_budgets if names_of_budgets.count(name) > 1), None):
            raise SetupError(f"{origin.at('budgets')}: two [[budgets]] have the name {double!r}")
        return cls(engine_config=engine_config, tools=tools, budgets=budgets, root=root, **values)


def _is_trusted_file(path: Path) -> bool:
    """Refuse another user's file in a folder above: it must not decide what we run."""
    return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)


def _read_list(config_type: type[T], name: str, document: Mapping[str, Any], origin: SettingsOrigin) -> tuple[T, ...]:
    entries = document.get(name, [])
    if not isinstance(entries, list):
        raise SetupError(f"{origin.at(name)}: {name} is a list of sections: write [[{name}]] above each")
    return tuple(read_item(config_type, name, number, entry, origin) for number, entry in enumerate(entries, 1))


def _read_tools_section(values: Any, origin: SettingsOrigin, environ: Mapping[str, str]) -> ToolsSection:
    own = {"workspace", "protected_paths", "secret_paths", "http_request"}
    plugins = {}
    if isinstance(values, dict):
        plugins = {name: section for name, section in values.items() if name not in own}
        values = {name: value for name, value in values.items() if name in own}
    if plugins:  # else the installed packages need not be searched
        names = own.union(entry.name for entry in find_plugin_entries())
        for name in plugins:
            if name not in names:
                hint = did_you_mean(name, names) or " Is the package that provides it installed?"
                raise SetupError(f"{origin.at(f'tools.{name}')}: there is no {name!r} in [tools].{hint}")
    section = read_section(ToolsSection, "tools", values, origin, environ)
    return dataclasses.replace(section, plugins=plugins, origin=origin)
