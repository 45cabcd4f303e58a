"""The description of a tool.

A tool (`ToolSpec`) has one or more actions (`ToolCapability`), each with its parameters. The side effects of a call
(`Effects`) and how it may be run (`Limits`) belong to the spec too, for the tool as a whole or for one action.
Specs are values: to change one, make another with `dataclasses.replace`. Worker processes import this module, so it
must stay quick to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeAlias

from ferrule.core.content import encode_json
from ferrule.core.json_schema import JsonSchema as JsonSchema
from ferrule.core.json_schema import is_whole_schema, parameters_to_schema, secret_properties
from ferrule.core.names import did_you_mean, model_name
from ferrule.errors import SpecError

Isolation: TypeAlias = Literal["auto", "process", "thread", "inline"]
"""Where a function runs: `auto` = async functions inline, sync ones in a worker process if they can be sent there."""

Placement: TypeAlias = Literal["local", "cluster"]
"""On which machine a function runs: `cluster` = on a node of the cluster if the engine has one, else here."""

SOURCES = ("tools", "skills", "mcps", "builtin")
"""In order of priority: of two tools with one name, the one from the earlier source is called first."""

PARAMETER_TYPES = ("string", "number", "integer", "boolean", "array", "object", "any")


class ToolType(StrEnum):
    """How a kind of tool is reached."""

    FUNCTION = "function"
    MCP_SERVER = "mcp_server"
    SKILL = "skill"
    HTTP = "http"
    COMMAND = "command"
    BUILTIN = "builtin"


class ToolCategory(StrEnum):
    """What a tool is about; also its bucket for limits unless it names another."""

    HTTP = "http"
    DATABASE = "database"
    FILE = "file"
    AI = "ai"
    NOTIFICATION = "notification"
    CUSTOM = "custom"
    WEB_AUTOMATION = "web_automation"
    DATA_PROCESSING = "data_processing"
    CODE_EXECUTION = "code_execution"
    FILE_MANAGEMENT = "file_management"
    GENERAL = "general"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The side effects of a call. The defaults promise nothing."""

    read_only: bool = False
    """Changes nothing anywhere."""
    idempotent: bool = False
    """Calling twice is the same as calling once: a transient failure may be retried."""
    destructive: bool = False
    """May destroy something that cannot be restored."""
    open_world: bool = False
    """Reaches things outside the user's own systems, such as the web."""
    cacheable: bool = False
    """The same arguments give the same result for `cache_ttl` seconds."""
    cache_ttl: float = 300.0
    polling: bool = False
    """Meant to be called repeatedly with the same arguments until something has changed; such calls are not loops."""

    @property
    def repeatable(self) -> bool:
        return self.idempotent or self.read_only


NO_EFFECTS: Final = Effects()
"""The effects of a tool that declares none. Equal effects that a tool declares are another object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a call may be run. None means: as the engine is configured."""

    timeout: float | None = None
    """Seconds; a caller may ask for less, never for more."""
    max_timeout: float | None = None
    """Seconds that a call may take as long as it reports progress: each report gives it the whole timeout again. None:
    reports change nothing."""
    bucket: str | None = None
    """The bucket whose slots and rate the call uses; None = the tool's category."""
    isolation: Isolation = "auto"
    max_output: int | None = None
    """Bytes of output returned; a longer output is stored as an artifact and shortened."""
    placement: Placement = "local"
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a call needs of a node of the cluster: `cpu`, `gpu`, a name of your own. Implies `placement="cluster"`."""

    def __post_init__(self) -> None:
        for name, amount in self.resources.items():
            if not is_above_zero(amount):
                raise SpecError(f"resources: the amount of {name!r} must be more than 0, not {amount!r}")
        for name, seconds in (("timeout", self.timeout), ("max_timeout", self.max_timeout)):
            if seconds is not None and not is_above_zero(seconds):
                raise SpecError(f"{name} must be more than 0 seconds, not {seconds!r}")
        if self.max_output is not None and not is_above_zero(self.max_output):
            raise SpecError(f"max_output must be at least 1 byte, not {self.max_output!r}")

    @property
    def is_for_cluster(self) -> bool:
        return self.placement == "cluster" or bool(self.resources)


def is_above_zero(value: object) -> bool:
    """Return whether an option is a number above 0; text such as "5" is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParameter:
    """One parameter as a YAML file or a program declares it."""

    name: str
    type: str = "string"
    description: str = ""
    required: bool = False
    default: Any = None
    has_default: bool = False
    """Whether there is a default: None may be one."""
    schema: JsonSchema = field(default_factory=dict)
    """The other keywords of its JSON Schema: enum, pattern, minimum, items, properties …"""
    secret: bool = False
    """Its values are never recorded."""

    def to_schema(self) -> JsonSchema:
        schema: JsonSchema = {} if self.type == "any" else {"type": self.type}
        if self.description:
            schema["description"] = self.description
        schema.update(self.schema)
        if self.has_default:
            schema["default"] = self.default
        if self.secret:
            schema["writeOnly"] = True
        return schema


@dataclass(frozen=True)
class ToolCapability:
    """One action of a tool."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)
    """Either a map of names to parameters (`{"url": {"type": "string", "required": True}}`) or a whole JSON Schema."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    category: str = "general"
    _: KW_ONLY
    tags: list[str] = field(default_factory=list)
    """What this action can do, where the tool's tags say less; for actions of MCP servers and web APIs."""
    fills_defaults: bool = True
    """Whether the defaults of optional parameters are passed on. A server of others fills in its own."""
    output: JsonSchema | None = None
    effects: Effects | None = None
    """None = the tool's."""
    limits: Limits | None = None
    """None = the tool's."""
    price: float | None = None
    """Of one call, in the currency of the price list; None = the tool's."""
    annotations: dict[str, Any] = field(default_factory=dict)
    """What an MCP server claims about the action, as it wrote it. Its effects follow only if the server is trusted."""
    listing: dict[str, Any] = field(default_factory=dict)
    """What else an MCP server says about the action (title, icons, `_meta`), for interfaces that pass it on."""
    auto_approve: bool = False
    """The user's configuration says that calls of this action need no approval."""
    changes: str = ""
    """How what an MCP server lists differs from what the user accepted, as a diff."""
    listed: ToolCapability | None = None
    """What the server lists instead, while the rest of this is as the user accepted it."""

    def __post_init__(self) -> None:
        _check_price(self.price, self.name)

    @property
    def is_withheld(self) -> bool:
        """Return whether the action has changed, and nothing accepted can be shown instead."""
        return bool(self.changes) and self.listed is None

    @cached_property
    def schema(self) -> JsonSchema:
        """Return the parameters as one JSON Schema of type object."""
        return self.parameters if is_whole_schema(self.parameters) else parameters_to_schema(self.parameters)

    @property
    def schema_or_empty(self) -> JsonSchema:
        """Like `schema`, but without parameters where they are malformed: only a call reports that."""
        try:
            return self.schema
        except SpecError:
            return {"type": "object", "properties": {}}

    @cached_property
    def has_header_parameters(self) -> bool:
        """Return whether MCP clients repeat some of its arguments in headers of HTTP."""
        return "x-mcp-header" in str(self.schema_or_empty)

    @cached_property
    def secret_names(self) -> frozenset[str]:
        """Return the parameters that are never recorded, because anything in them is `writeOnly`."""
        return secret_properties(self.schema)


@dataclass(frozen=True)
class ToolSpec:
    """A tool: its identity, its actions, and their effects and limits."""

    tool_id: str
    name: str = ""
    description: str = ""
    tool_type: ToolType = ToolType.FUNCTION
    capabilities: list[ToolCapability] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    version: str = "1.0.0"
    enabled: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    aliases: list[str] = field(default_factory=list)
    """Other names it may be called by, unless they are the own name of another tool."""
    unavailable_actions: dict[str, str] = field(default_factory=dict)
    """Actions that cannot be offered, each with the reason, such as a schema that is too costly to check."""
    category: ToolCategory | str = ToolCategory.GENERAL
    subcategory: str = "general"
    priority: int = 1
    """Among the tools of its category: the higher comes first."""
    dependencies: list[str] = field(default_factory=list)
    """Ids of tools without which this one cannot be called."""
    effects: Effects = NO_EFFECTS
    limits: Limits = Limits()
    price: float | None = None
    """Of one call of any action, in the currency of the price list; a price list may name another."""
    implementation_config: dict[str, Any] = field(default_factory=dict)
    """Settings for the executor that runs it."""

    def __post_init__(self) -> None:
        if not self.tool_id or not self.tool_id.strip():
            raise SpecError("a tool needs a tool_id that is not empty")
        if not self.name:
            object.__setattr__(self, "name", self.tool_id)
        _check_price(self.price, self.tool_id)
        if isinstance(self.dependencies, str):
            raise SpecError(f"tool {self.tool_id!r}: dependencies must be a list: write [{self.dependencies!r}]")
        if len(self.capabilities) > 1:
            action_names: set[str] = set()
            for capability in self.capabilities:
                if capability.name in action_names:
                    raise SpecError(f"tool {self.tool_id!r} has two actions called {capability.name!r}")
                action_names.add(capability.name)

    # Names that YAML tools are known by in the design documents.

    @property
    def id(self) -> str:
        return self.tool_id

    @property
    def status(self) -> str:
        return "enabled" if self.enabled else "disabled"

    @property
    def parameters(self) -> list[ToolParameter]:
        """Return the parameters of a tool with one action."""
        return parse_parameters(self.capabilities[0].schema) if len(self.capabilities) == 1 else []

    def capability(self, action: str | None = None) -> ToolCapability | None:
        """Return the action of this name; without a name, the only one there is."""
        if not action:
            return self.capabilities[0] if len(self.capabilities) == 1 else None
        for capability in self.capabilities:
            if capability.name == action:
                return capability
        # A tool with one action may be called with its own name as the action, whatever that action is called, and
        # with `execute`, as the design documents write it.
        if len(self.capabilities) == 1 and action in (self.tool_id, self.name, "execute"):
            return self.capabilities[0]
        return None

    def describe_actions(self, unknown: str | None = None) -> str:
        """Return a sentence that lists the actions, for messages about an unknown one."""
        names = [c.name for c in self.capabilities]
        hint = did_you_mean(unknown, names) if unknown else ""
        return f"Its actions are: {', '.join(names) or 'none'}.{hint}"

    def effects_of(self, capability: ToolCapability) -> Effects:
        return capability.effects or self.effects

    def limits_of(self, capability: ToolCapability) -> Limits:
        return capability.limits or self.limits

    def price_of(self, capability: ToolCapability) -> float | None:
        return self.price if capability.price is None else capability.price

    def bucket_of(self, capability: ToolCapability) -> str:
        category = self.category.value if isinstance(self.category, ToolCategory) else self.category
        return self.limits_of(capability).bucket or category

    def model_name(self, capability: ToolCapability) -> str:
        """Return the name of this action for models: `tool_id`, or `tool_id__action` where there are several."""
        return model_name(self.tool_id, None if len(self.capabilities) == 1 else capability.name)

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest that changes when anything a caller could notice changes; stored with every record."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_IN_FINGERPRINT}
        # Field by field: a capability's cached schema is not a field, but orjson would write it once it was computed.
        values["capabilities"] = [
            {f.name: getattr(c, f.name) for f in fields(c) if f.name not in _NOT_IN_FINGERPRINT}
            for c in (each.listed or each for each in self.capabilities)
        ]
        return sha256(encode_json(values, sort_keys=True)).hexdigest()[:16]


_NOT_IN_FINGERPRINT = frozenset(
    {
        "enabled",
        "aliases",
        "tags",
        "subcategory",
        "priority",
        "dependencies",
        "price",
        "listing",
        "auto_approve",
        "changes",
        "listed",
    }
)
"""Fields that decide whether and how a tool is found, approved or paid, not what it does."""


def _check_price(price: object, name: str) -> None:
    is_number = isinstance(price, (int, float)) and not isinstance(price, bool)
    if price is not None and not (is_number and 0 <= price < float("inf")):  # type: ignore[operator]
        raise SpecError(f"the price of {name!r} must be a number from 0 on, not {price!r}")


@dataclass(frozen=True)
class ExtendedToolSpec(ToolSpec):
    """A tool with `category`, `subcategory`, `priority` and `dependencies`. Every spec has them; here in this order."""

    category: ToolCategory | str = ToolCategory.GENERAL
    subcategory: str = "general"
    priority: int = 1
    dependencies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FunctionToolSpec(ToolSpec):
    """A tool that is a Python class in a module, instantiated on first use."""

    module_path: str = ""
    class_name: str = ""
    init_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MCPServerSpec(ToolSpec):
    """A tool that is an MCP server; its actions are what it lists."""

    tool_type: ToolType = ToolType.MCP_SERVER
    server_config: dict[str, Any] = field(default_factory=dict)
    endpoint: str = ""
    connection_params: dict[str, Any] = field(default_factory=dict)


class FunctionProvider(Protocol):
    """What the `function` executor runs: it returns the callable of an action, created on first use if necessary.

    With an attribute `code_digest`, approvals of its tool are for the code that has this digest.
    """

    def function(self, action: str, /) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Tool:
    """A spec together with what runs it: read by sources, stored in the registry, called by the engine."""

    spec: ToolSpec
    handler: str
    """The name of the executor that runs it."""
    target: Any = None
    """What that executor needs beyond the spec: a `FunctionProvider`, a connection …"""
    source: str = "tools"
    """Where it was read from: one of `SOURCES`."""
    origin: str = ""
    """Where exactly: a file and line, a module and function, a server. Messages name it."""
    needs: str = ""
    """What must be set up before it can be called, and how; empty: nothing."""

    @property
    def id(self) -> str:
        return self.spec.tool_id

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Return a digest like the spec's that also changes with the code that runs; an approval is for one."""
        code = getattr(self.target, "code_digest", "")
        return sha256(f"{self.source} {self.handler} {self.spec.fingerprint} {code}".encode()).hexdigest()[:16]

    @property
    def priority(self) -> int:
        return SOURCES.index(self.source) if self.source in SOURCES else len(SOURCES)


def listing_order(tool: Tool) -> tuple[int, int, str]:
    """Return the key that sorts lists of tools for people: the user's own tools come before the bundled ones."""
    return -tool.spec.priority, tool.priority, tool.id


def parse_parameters(schema: JsonSchema) -> list[ToolParameter]:
    """Return the parameters of an object schema, in order."""
    required = set(schema.get("required") or ())
    properties = schema.get("properties") or {}
    return [
        _parse_parameter(name, inner if isinstance(inner, dict) else {}, required=name in required)
        for name, inner in properties.items()
    ]


def _parse_parameter(name: str, schema: JsonSchema, *, required: bool) -> ToolParameter:
    type_ = schema.get("type", "any")
    has_one_type = isinstance(type_, str)
    fields_of_parameter = {"description", "default", "writeOnly", *(("type",) if has_one_type else ())}
    return ToolParameter(
        name=name,
        type=type_ if has_one_type else "any",
        description=schema.get("description", ""),
        required=required,
        default=schema.get("default"),
        has_default="default" in schema,
        schema={keyword: value for keyword, value in schema.items() if keyword not in fields_of_parameter},
        secret=bool(schema.get("writeOnly")),
    )
