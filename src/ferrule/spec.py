"""What a tool says about itself.

A tool (`ToolSpec`) has one or more actions (`ToolCapability`), each with its parameters. What a call does to the
world (`Effects`) and how it may be run (`Limits`) belong to the spec too, for the tool as a whole or for one action.
Specs are values: to change one, make another with `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeAlias

from ferrule.content import encode_json
from ferrule.errors import SpecError
from ferrule.names import did_you_mean, model_name

JsonSchema: TypeAlias = dict[str, Any]
Isolation: TypeAlias = Literal["auto", "process", "thread", "inline"]
"""Where a function runs: `auto` = async functions inline, sync ones in a worker process if they can be sent there."""

SOURCES = ("tools", "skills", "mcps", "builtin")
"""In order of priority: of two tools of one name the one of the earlier source is called first."""

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
    """What a call does to the world. The defaults promise nothing."""

    read_only: bool = False
    """Changes nothing anywhere."""
    idempotent: bool = False
    """Twice is the same as once: may be tried again after a transient failure."""
    destructive: bool = False
    """May destroy something that cannot be brought back."""
    cacheable: bool = False
    """The same arguments give the same result for `cache_ttl` seconds."""
    cache_ttl: float = 300.0
    polling: bool = False
    """Is called again and again with the same arguments until something has changed; no such call is a repetition."""

    @property
    def repeatable(self) -> bool:
        return self.idempotent or self.read_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a call may be run. None means: as the engine is configured."""

    timeout: float | None = None
    """Seconds; a caller may ask for less, never for more."""
    bucket: str | None = None
    """The bucket whose places and rate the call takes; None = the tool's category."""
    isolation: Isolation = "auto"
    max_output: int | None = None
    """Bytes of output handed on; what is longer is kept whole as an artifact and cut for the reader."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise SpecError(f"timeout must be more than 0 seconds, not {self.timeout!r}")
        if self.max_output is not None and self.max_output < 1:
            raise SpecError(f"max_output must be at least 1 byte, not {self.max_output!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParameter:
    """One parameter as a YAML file or a program states it."""

    name: str
    type: str = "string"
    description: str = ""
    required: bool = False
    default: Any = None
    has_default: bool = False
    """Whether `default` was given at all: None may be meant."""
    schema: JsonSchema = field(default_factory=dict)
    """Everything else JSON Schema can say about it: enum, pattern, minimum, items, properties …"""
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


@dataclass(frozen=True, kw_only=True)
class ToolCapability:
    """One action of a tool."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)
    """Either a map of names to parameters (`{"url": {"type": "string", "required": True}}`) or a whole JSON Schema."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    category: str = "general"
    output: JsonSchema | None = None
    effects: Effects | None = None
    """None = the tool's."""
    limits: Limits | None = None
    """None = the tool's."""

    @cached_property
    def schema(self) -> JsonSchema:
        """The parameters as one JSON Schema of type object."""
        return self.parameters if _is_schema(self.parameters) else _schema_of_map(self.parameters)

    @cached_property
    def secret_names(self) -> frozenset[str]:
        """Parameters that are never recorded: those with something secret (`writeOnly`) anywhere in them."""
        return frozenset(n for n, p in _properties(self.schema, self.schema) if _holds_secret(p, self.schema))


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool: who it is, what it can do, what that does to the world."""

    tool_id: str
    name: str = ""
    description: str = ""
    aliases: list[str] = field(default_factory=list)
    """Other names it may be called by, where no tool has them for its own."""
    tool_type: ToolType = ToolType.FUNCTION
    capabilities: list[ToolCapability] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    version: str = "1.0.0"
    enabled: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    category: ToolCategory | str = ToolCategory.GENERAL
    subcategory: str = "general"
    priority: int = 1
    """Among the tools of its category: the higher comes first."""
    dependencies: list[str] = field(default_factory=list)
    """Ids of tools without which this one cannot be called."""
    effects: Effects = Effects()
    limits: Limits = Limits()
    implementation_config: dict[str, Any] = field(default_factory=dict)
    """What the tool's executor needs to know to run it."""

    def __post_init__(self) -> None:
        if not self.tool_id or not self.tool_id.strip():
            raise SpecError("a tool needs a tool_id that is not empty")
        if not self.name:
            object.__setattr__(self, "name", self.tool_id)
        if isinstance(self.dependencies, str):
            raise SpecError(f"tool {self.tool_id!r}: dependencies must be a list: write [{self.dependencies!r}]")
        if len(self.capabilities) > 1:
            seen: set[str] = set()
            for capability in self.capabilities:
                if capability.name in seen:
                    raise SpecError(f"tool {self.tool_id!r} has two actions called {capability.name!r}")
                seen.add(capability.name)

    # The names of the entity in a YAML file's world.

    @property
    def id(self) -> str:
        return self.tool_id

    @property
    def status(self) -> str:
        return "enabled" if self.enabled else "disabled"

    @property
    def parameters(self) -> list[ToolParameter]:
        """The parameters of a tool with one action."""
        return parameters_of(self.capabilities[0].schema) if len(self.capabilities) == 1 else []

    def capability(self, action: str | None = None) -> ToolCapability | None:
        """The action of this name; without a name, the only one there is."""
        if not action:
            return self.capabilities[0] if len(self.capabilities) == 1 else None
        for capability in self.capabilities:
            if capability.name == action:
                return capability
        # A tool with one action may be called with its own name as the action, whatever that action is called.
        if len(self.capabilities) == 1 and action in (self.tool_id, self.name):
            return self.capabilities[0]
        return None

    def describe_actions(self, wrong: str | None = None) -> str:
        """A sentence that lists the actions, for messages about a wrong one."""
        names = [c.name for c in self.capabilities]
        near = did_you_mean(wrong, names) if wrong else ""
        return f"Its actions are: {', '.join(names) or 'none'}.{near}"

    def effects_of(self, capability: ToolCapability) -> Effects:
        return capability.effects or self.effects

    def limits_of(self, capability: ToolCapability) -> Limits:
        return capability.limits or self.limits

    def bucket_of(self, capability: ToolCapability) -> str:
        category = self.category.value if isinstance(self.category, ToolCategory) else self.category
        return self.limits_of(capability).bucket or category

    def model_name(self, capability: ToolCapability) -> str:
        """What models call this action: `tool_id`, or `tool_id__action` where there are several."""
        return model_name(self.tool_id, None if len(self.capabilities) == 1 else capability.name)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when anything a caller could notice changes; records carry it."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SAYS_WHERE_IT_STANDS}
        # Field by field: a capability's cached schema is no field, but orjson would write it once it was asked for.
        said["capabilities"] = [{f.name: getattr(c, f.name) for f in fields(c)} for c in self.capabilities]
        return sha256(encode_json(said, sort_keys=True)).hexdigest()[:16]


_SAYS_WHERE_IT_STANDS = frozenset({"enabled", "aliases", "tags", "subcategory", "priority", "dependencies"})
"""Whether and where a tool is found among others: what it does is the same."""


@dataclass(frozen=True, kw_only=True)
class ExtendedToolSpec(ToolSpec):
    """A tool with a place among others: `category`, `subcategory`, `priority`, `dependencies`. Every spec has them."""


@dataclass(frozen=True, kw_only=True)
class FunctionToolSpec(ToolSpec):
    """A tool that is Python code: a class in a module, made on first use."""

    module_path: str = ""
    class_name: str = ""
    init_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MCPServerSpec(ToolSpec):
    """A tool that is an MCP server; its actions are what it lists."""

    tool_type: ToolType = ToolType.MCP_SERVER
    server_config: dict[str, Any] = field(default_factory=dict)
    endpoint: str = ""
    connection_params: dict[str, Any] = field(default_factory=dict)


class FunctionTarget(Protocol):
    """What the `function` executor runs: it finds the callable of an action, making it on first use if need be."""

    def function(self, action: str, /) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Tool:
    """A spec together with what runs it: what sources bring, the registry keeps and the engine calls."""

    spec: ToolSpec
    handler: str
    """The name of the executor that runs it."""
    target: Any = None
    """What that executor needs beyond the spec: a `FunctionTarget`, a connection …"""
    source: str = "tools"
    """Where tools come from, in order of priority: see `SOURCES`."""
    origin: str = ""
    """The very place: a file and line, a module and function, a server. Messages name it."""
    needs: str = ""
    """What must be set up before it can be called, in words that say how; empty: nothing."""

    @property
    def id(self) -> str:
        return self.spec.tool_id

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def priority(self) -> int:
        return SOURCES.index(self.source) if self.source in SOURCES else len(SOURCES)


def parameters_of(schema: JsonSchema) -> list[ToolParameter]:
    """The parameters of an object schema, in order."""
    required = set(schema.get("required") or ())
    known = {"type", "description", "default", "writeOnly"}
    found = []
    for name, prop in (schema.get("properties") or {}).items():
        kind = prop.get("type", "any") if isinstance(prop, dict) else "any"
        prop = prop if isinstance(prop, dict) else {}
        found.append(
            ToolParameter(
                name=name,
                type=kind if isinstance(kind, str) else "any",
                description=prop.get("description", ""),
                required=name in required,
                default=prop.get("default"),
                has_default="default" in prop,
                schema={k: v for k, v in prop.items() if k not in known or (k == "type" and kind != v)},
                secret=bool(prop.get("writeOnly")),
            )
        )
    return found


def _is_schema(parameters: dict[str, Any]) -> bool:
    """Whether parameters are a whole JSON Schema; else they are a map of names, whose values are all mappings."""
    if isinstance(parameters.get("type"), (str, list)) or isinstance(parameters.get("$ref"), str):
        return True
    if any(isinstance(parameters.get(key), list) for key in ("required", "allOf", "anyOf", "oneOf", "enum")):
        return True
    if isinstance(parameters.get("$schema"), str):
        return True
    # `properties` may be the name of a parameter: then it says its type like any other.
    inner = parameters.get("properties")
    return isinstance(inner, dict) and all(isinstance(value, (dict, bool)) for value in inner.values()) and bool(inner)


def _properties(schema: JsonSchema, root: JsonSchema) -> list[tuple[str, Any]]:
    found = dict(_local_target(schema, root).get("properties") or {})
    found.update(schema.get("properties") or {})
    return list(found.items())


def _holds_secret(schema: Any, root: JsonSchema) -> bool:
    """Whether anything in a schema, or in what it refers to, is `writeOnly`."""
    seen: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if part.get("writeOnly") is True:
                return True
            ref = part.get("$ref")
            if isinstance(ref, str) and ref not in seen:
                seen.add(ref)
                waiting.append(_local_target(part, root))
            waiting += [inner for key, inner in part.items() if key not in _SAYS_NO_SCHEMA]
    return False


_SAYS_NO_SCHEMA = frozenset({"default", "examples", "enum", "const", "description", "$defs", "definitions"})


def _local_target(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """What a local `$ref` points to; empty where there is none."""
    ref = schema.get("$ref")
    found: Any = root
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return {}
    for part in ref[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _schema_of_map(parameters: dict[str, Any]) -> JsonSchema:
    properties: dict[str, Any] = {}
    required = []
    for name, said in parameters.items():
        if not isinstance(said, dict):
            raise SpecError(f"parameter {name!r} must be a mapping such as {{'type': 'string'}}, not {said!r}")
        # `required: true` beside a parameter is not JSON Schema; a list there is (of a nested object) and stays.
        prop = {k: v for k, v in said.items() if not (k == "required" and isinstance(v, bool))}
        if prop.get("type") == "any":
            del prop["type"]
        if said.get("required") is True:
            required.append(name)
        properties[name] = prop
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema
