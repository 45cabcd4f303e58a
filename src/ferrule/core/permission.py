"""Who makes a call, what this caller may do at most, and what a policy decides about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from ferrule.core.names import ACTION_SEPARATOR
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import SetupError

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
PrincipalKind: TypeAlias = Literal["user", "agent", "client", "token"]
EffectTier: TypeAlias = Literal["read_only", "changing", "destructive"]

EFFECT_TIERS: Final[tuple[EffectTier, ...]] = ("read_only", "changing", "destructive")
"""From the least to the most that a call may do."""
_WILDCARDS: Final = frozenset("*?[")


def effect_tier(effects: Effects) -> EffectTier:
    return "destructive" if effects.destructive else "read_only" if effects.read_only else "changing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who makes a call. Its restrictions are checked before any policy, and no policy can lift them."""

    kind: PrincipalKind = "user"
    """`user`: a person wrote the call. `agent`: a model chose it. `client`: a program that asks its own user, such as
    an MCP client on stdio. `token`: a client of a server.
    """
    name: str = "local"
    roles: frozenset[str] = frozenset()
    tools: frozenset[str] | None = None
    """The only tools it may call: ids, names for models (`files__read`), or patterns (`files*`). None = all."""
    max_effect: EffectTier = "destructive"
    """The most that its calls may do."""
    tenant: str = ""
    """Whose data it works on; what one tenant's runs learn is not shared with another's."""
    account: str = ""
    """Whose credentials are sent to servers elsewhere; a server sets it by the client's token. Empty: those of whoever
    runs this process."""
    client_id: str = ""
    """Tells clients of one name apart: the id of the token or of the user of an issuer, or what an MCP client on
    standard input is known by. No other client ever has the same."""
    outer_tools: tuple[frozenset[str], ...] = ()
    """Further restrictions like `tools`, which all apply."""
    own_tools: frozenset[str] = frozenset()
    """The built-in tools by which an agent asks, finishes, and finds and calls other tools: no restriction is about
    them, because what they call is checked by itself.
    """

    def __post_init__(self) -> None:
        for name in ("roles", "tools"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise SetupError(f"The {name} of a principal must be a list: write [{value!r}].")
            if value is not None:
                object.__setattr__(self, name, frozenset(value))
        if self.kind not in get_args(PrincipalKind):
            kinds = ", ".join(get_args(PrincipalKind))
            raise SetupError(f"There is no kind of principal {self.kind!r}; write one of: {kinds}.")
        if self.max_effect not in EFFECT_TIERS:
            raise SetupError(f"max_effect must be one of {', '.join(EFFECT_TIERS)}, not {self.max_effect!r}.")

    @property
    def label(self) -> str:
        """Return the name in messages and records: `agent:research`."""
        return f"{self.kind}:{self.name}"

    @property
    def identity(self) -> str:
        """Return the label, with a digest where roles or restrictions tell two principals of one name apart."""
        limits = (sorted(self.roles), self.max_effect, [sorted(names) for names in self._tool_sets()])
        if limits == ([], "destructive", []):
            return self.label
        return f"{self.label}#{sha256(repr(limits).encode()).hexdigest()[:8]}"

    def restricted_to(self, tools: Iterable[str]) -> Principal:
        """Return the principal with one more restriction."""
        outer = self.outer_tools if self.tools is None else (*self.outer_tools, self.tools)
        return replace(self, tools=frozenset(tools), outer_tools=outer)

    def extended_by(self, tools: Iterable[str]) -> Principal:
        """Return the principal that may also call the agent's own tools, whatever its restrictions."""
        return replace(self, own_tools=self.own_tools | frozenset(tools))

    def owns(self, tool: Tool) -> bool:
        return tool.id in self.own_tools and tool.source == "builtin"

    def nested_in(self, outer: Principal) -> Principal:
        """Return the outer principal with these restrictions added: nothing that a call starts may do more."""
        tier = min(self.max_effect, outer.max_effect, key=EFFECT_TIERS.index)
        sets = tuple(dict.fromkeys((*outer._tool_sets(), *self._tool_sets())))
        own_tools = outer.own_tools | self.own_tools
        narrowed = replace(outer, max_effect=tier, tools=sets[0] if sets else None, outer_tools=sets[1:])
        return replace(narrowed, own_tools=own_tools) if own_tools != outer.own_tools else narrowed

    def _tool_sets(self) -> tuple[frozenset[str], ...]:
        return self.outer_tools if self.tools is None else (self.tools, *self.outer_tools)

    def explain_restriction(self, tool: Tool, capability: ToolCapability) -> str | None:
        """Return why it may not call an action, whatever the policy says; None when it may."""
        if self.own_tools and self.owns(tool):
            return None
        for names in self._tool_sets():
            if not matches_any(names, tool, capability):
                listed = ", ".join(sorted(names)) or "none"
                return f"Tool {tool.id!r} is not among the tools that may be used here: {listed}."
        if self.max_effect != "destructive":
            tier = effect_tier(tool.spec.effects_of(capability))
            if EFFECT_TIERS.index(tier) > EFFECT_TIERS.index(self.max_effect):
                return f"{self.label} may make {self.max_effect} calls, and {tool.id!r} is {tier}."
        return None


LOCAL_USER: Final = Principal()
PLANNER_PRINCIPAL: Final = Principal(kind="agent", name="planner")
"""Who makes the calls of a plan, which a model has chosen."""


def matches_any(patterns: frozenset[str], tool: Tool, capability: ToolCapability) -> bool:
    """Return whether a tool or this action of it is named in a set of names and patterns."""
    spec = tool.spec
    names: tuple[str, ...] = (spec.tool_id, spec.name, spec.model_name(capability))
    if not patterns.isdisjoint(names):
        return True
    # The name for models encodes `.` and Chinese, and cuts what is long; people write names as they are.
    names = (*names, f"{spec.tool_id}{ACTION_SEPARATOR}{capability.name}")
    if names[-1] in patterns:
        return True
    return any(fnmatchcase(name, p) for p in patterns if not _WILDCARDS.isdisjoint(p) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy says about a call, and why."""

    verdict: Verdict
    reason: str = ""
    rule: str = ""
    """The rule that decided, for people; empty where none did."""
    depends_on_arguments: bool = False
    """Whether the same call with other arguments may be decided differently."""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise SetupError(f"A policy must decide allow, ask or deny, not {self.verdict!r}.")


class CallPolicy(Protocol):
    def decide(
        self, principal: Principal, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None, /
    ) -> Decision:
        """Return whether a call may be made; without arguments: whether it may be made with any."""
