"""The policy: an ordered list of rules; the first one that matches a call decides about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final, Literal, get_args
from weakref import WeakKeyDictionary

from ferrule.catalog.registry import RegistrySnapshot
from ferrule.core.content import as_text
from ferrule.core.names import ACTION_SEPARATOR, did_you_mean, model_name
from ferrule.core.permission import CallPolicy, Decision, Principal, Verdict, matches_any
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.errors import SetupError, ToolNotFound, error_text
from ferrule.policy.provenance import ProvenanceRules, UntrustedArguments

ENTRY_POINT_GROUP = "ferrule.policies"
_EFFECTS: Final = ("destructive", "read_only", "idempotent", "changing", "open_world")
_COMPARISONS: Final = ("more_than", "less_than")
_MISSING: Final = object()
_VERDICTS: Final = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A verdict for the calls that match all of its conditions."""

    verdict: Verdict
    tool: str = "*"
    """An id, the models' name of an action (`files__delete`), or a pattern (`files*`)."""
    tag: str = ""
    effect: str = ""
    """`destructive`, `read_only`, `idempotent`, `open_world`, or `changing`: everything that is not read-only."""
    principal: str = ""
    """A pattern for the kind of the caller (`agent`), its name (`token:ci-*`), a role (`role:admin`) or a tenant
    (`tenant:acme`).
    """
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Conditions by the names of arguments: a value, a pattern (`/etc/*`), a list of these, or
    `{"more_than": 100}` and `{"less_than": 100}`.
    """
    origin: Literal["", "trusted", "untrusted"] = ""
    """`untrusted`: calls of a run whose target the user has not named (see docs/policy.md); `trusted`: all others."""
    reason: str = ""
    """Shown to the person who is asked, or to the caller who is refused; not to one from outside if all calls are."""
    __pydantic_config__: ClassVar = {"extra": "forbid"}  # for `ferrule.toml`, where a wrong key must not be ignored

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise SetupError(f"The verdict of a rule must be allow, ask or deny, not {self.verdict!r}.")
        for name in ("tool", "tag", "effect", "principal"):
            if not isinstance(getattr(self, name), str):
                raise SetupError(
                    f"The {name} of a rule must be one string, not {getattr(self, name)!r}. Write several rules."
                )
        if not isinstance(self.arguments, Mapping):
            raise SetupError(f"The arguments of a rule are conditions by name, not {self.arguments!r}.")
        if self.origin not in ("", "trusted", "untrusted"):
            raise SetupError(f"The origin of a rule must be trusted or untrusted, not {self.origin!r}.")
        if self.effect and self.effect not in _EFFECTS:
            raise SetupError(f"There is no effect {self.effect!r}; write one of: {', '.join(_EFFECTS)}.")
        for name, condition in self.arguments.items():
            if not isinstance(condition, Mapping):
                continue
            numbers = [v for v in condition.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
            if not condition or len(numbers) < len(condition) or not condition.keys() <= {*_COMPARISONS}:
                raise SetupError(
                    f"The condition of {name!r} must be a value, a list of values, or a number to compare with: "
                    f'{{"more_than": 100}} or {{"less_than": 100}}, not {condition!r}.'
                )

    def __str__(self) -> str:
        conditions = {"tag": self.tag, "effect": self.effect, "principal": self.principal, "origin": self.origin}
        parts = [f"tool {self.tool}", *(f"{name} {value}" for name, value in conditions.items() if value)]
        parts += [f"{name} = {as_text(condition)}" for name, condition in self.arguments.items()]
        return f"{self.verdict}: {', '.join(parts)}"

    def applies_to(self, principal: Principal, tool: Tool, capability: ToolCapability) -> bool:
        """Return whether all conditions hold, except those on arguments."""
        return self.covers(tool, capability) and (not self.principal or matches_principal(principal, self.principal))

    def covers(self, tool: Tool, capability: ToolCapability) -> bool:
        """Return whether the conditions on the tool hold."""
        if self.tag and self.tag not in tool.spec.tags:
            return False
        effects, is_changing_rule = tool.spec.effects_of(capability), self.effect == "changing"
        if self.effect and (effects.read_only if is_changing_rule else not getattr(effects, self.effect)):
            return False
        return self.tool == "*" or self._names(tool, capability)

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the conditions on arguments and their origin hold.

        A value that cannot be compared counts against the call: it fails an allow rule and matches an ask or deny rule.
        """
        if self.origin and (self.origin == "untrusted") != isinstance(arguments, UntrustedArguments):
            return False
        is_allowing = self.verdict == "allow"
        for name, condition in self.arguments.items():
            answers = [
                _meets_condition(condition, value, every=is_allowing) for value in _find_arguments(arguments, name)
            ]
            answer = all(answers) if is_allowing else _any_met(answers)
            if not answer and (answer is not None or is_allowing):
                return False
        return True

    def _names(self, tool: Tool, capability: ToolCapability) -> bool:
        spec = tool.spec
        actions = (f"{name}{ACTION_SEPARATOR}{capability.name}" for name in (spec.name, *spec.aliases))
        other_names = (*spec.aliases, *actions, model_name(tool.id, capability.name))
        return matches_any(frozenset((self.tool,)), tool, capability) or any(
            self.tool == name or fnmatchcase(name, self.tool) for name in other_names
        )


DEFAULT_RULES: Final = (
    Rule(
        verdict="ask",
        tool="http_request",
        principal="agent",
        arguments={"method": ["[Dd][Ee][Ll][Ee][Tt][Ee]"]},
        reason="A DELETE request may destroy something that cannot be restored.",
    ),
)
"""Appended to the rules of a policy that sets no `default`: for tools whose effect depends on their arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Decides about each call: allow, ask or deny."""

    rules: Sequence[Rule] = ()
    """In order: the first that matches decides."""
    default: Verdict | None = None
    """For calls that no rule matches. None: ask before a destructive call that a model chose, allow everything else."""
    trusted_skills: Mapping[str, str] = field(default_factory=dict)
    """Skills, with the digests of their files, whose `allowed-tools` need no approval while the skill is active."""
    provenance: ProvenanceRules = ProvenanceRules()
    """What calls of a run may do whose target comes from what a tool returned, not from the user."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise SetupError(f"The rules of a policy are Rule(…) objects, not {rule!r}.")
        if self.default is not None and self.default not in get_args(Verdict):
            raise SetupError(f"The default of a policy must be allow, ask or deny, not {self.default!r}.")

    def decide(
        self, principal: Principal, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None, /
    ) -> Decision:
        depends_on_arguments = False
        for rule in self.rules if self.default is not None else (*self.rules, *DEFAULT_RULES):
            if not rule.applies_to(principal, tool, capability):
                continue
            if rule.arguments or rule.origin:
                depends_on_arguments = True
                if rule.verdict == "deny" if arguments is None else not rule.accepts(arguments):
                    continue
            return Decision(
                verdict=rule.verdict,
                reason=rule.reason or _explain(rule.verdict, tool, capability),
                rule=str(rule),
                depends_on_arguments=depends_on_arguments,
            )
        verdict, reason = self._default_verdict(principal, tool, capability)
        source = "default: allow" if self.default == "allow" else ""  # what somebody has written counts as a rule
        return Decision(verdict=verdict, reason=reason, rule=source, depends_on_arguments=depends_on_arguments)

    def _default_verdict(self, principal: Principal, tool: Tool, capability: ToolCapability) -> tuple[Verdict, str]:
        name = tool.spec.model_name(capability)
        if principal.own_tools and principal.owns(tool):
            return "allow", ""
        if self.default is not None:
            return self.default, _explain(self.default, tool, capability)
        if principal.kind != "agent":
            return "allow", ""
        if capability.auto_approve or not tool.spec.effects_of(capability).destructive:
            return "allow", ""
        return "ask", f"{name} may destroy something that cannot be restored."


def find_rules_without_tools(policy: CallPolicy, tools: Iterable[Tool]) -> list[str]:
    """Return a sentence about each rule that matches no tool: most likely its name is misspelled."""
    candidates, sentences = tuple(tools), []
    # MCP servers whose actions are not known yet
    unlisted = [tool.id for tool in candidates if tool.spec.metadata.get("listed") is False]
    for number, rule in enumerate(policy.rules if isinstance(policy, Policy) else (), 1):
        may_match = any(rule.tool.startswith((tool_id, "*", "?", "[")) for tool_id in unlisted)
        if not may_match and not any(rule.covers(tool, c) for tool in candidates for c in tool.spec.capabilities):
            sentences.append(f"Rule {number} of the policy matches no known tool ({rule}).")
    return sentences


def _explain(verdict: Verdict, tool: Tool, capability: ToolCapability) -> str:
    name = tool.spec.model_name(capability)
    return {"allow": "", "ask": f"{name} needs your approval.", "deny": f"The policy does not allow {name!r}."}[verdict]


def check_policy(policy: CallPolicy | None) -> None:
    """SetupError for something that cannot decide about calls."""
    if policy is not None and (isinstance(policy, type) or not callable(getattr(policy, "decide", None))):
        raise SetupError(f"A policy is a Policy(…), or an object with the method `decide`, not {policy!r}.")


def matches_principal(principal: Principal, pattern: str) -> bool:
    """Return whether a pattern means a principal: by its kind, its label, a role or its tenant."""
    names = [principal.kind, principal.label, *(f"role:{role}" for role in principal.roles)]
    return any(fnmatchcase(name, pattern) for name in (*names, f"tenant:{principal.tenant}"))


def _find_arguments(arguments: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values that a name stands for: `options.force` is an argument, and the member `force` of `options`.

    A caller could pass both, to hide one behind the other. Members of each object in a list count.
    """
    values = [arguments[name]] if name in arguments else []
    first, *path = name.split(".")
    if path and first in arguments:
        values += _find_members(arguments[first], path)
    return values or [_MISSING]


def _find_members(value: Any, path: Sequence[str]) -> list[Any]:
    if not path:
        return [value]
    if isinstance(value, (list, tuple)):
        return [member for each in value for member in _find_members(each, path)]
    if isinstance(value, Mapping) and path[0] in value:
        return _find_members(value[path[0]], path[1:])
    return [_MISSING]


def _meets_condition(condition: Any, value: Any, *, every: bool) -> bool | None:
    """Return whether a value meets a condition; None when they cannot be compared.

    A list meets it if any of its members does, or only if `every` one does.
    """
    if value is _MISSING:
        return False
    if isinstance(value, (list, tuple, set, frozenset)) and value != condition:
        answers = [_meets_condition(condition, each, every=every) for each in value]
        return bool(answers) and all(answers) if every else _any_met(answers)
    if isinstance(condition, Mapping):
        return _compare(condition, value)
    if isinstance(condition, (list, tuple)):
        return _any_met([_meets_condition(each, value, every=every) for each in condition])
    if isinstance(condition, str):
        text = value if isinstance(value, str) else as_text(value)
        return text == condition or fnmatchcase(text, condition)
    if isinstance(condition, (bool, int, float)) and value is not None:
        comparable = bool if isinstance(condition, bool) else (int, float)
        if not isinstance(value, comparable):  # "true", 1 or "5", and the tool decides what that means
            return False if _is_different_number(value, condition) else None
    return bool(value == condition) and isinstance(value, bool) == isinstance(condition, bool)


def _is_different_number(value: Any, condition: bool | int | float) -> bool:
    """Return whether a text can only be read as a number that differs from the condition."""
    if isinstance(condition, bool) or not isinstance(value, str):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return number != condition and number == number  # not NaN


def _any_met(answers: Sequence[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


def _compare(condition: Mapping[str, Any], value: Any) -> bool | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    above, below = (condition.get(name) for name in _COMPARISONS)
    if number != number:  # NaN
        return None
    return (above is None or number > above) and (below is None or number < below)


class Permissions:
    """What one principal may do under one policy: the answer to every question of whether a tool may be called.

    What a `Policy` says about tools is computed once; a policy of the user's own may decide otherwise at any time.
    """

    def __init__(self, policy: CallPolicy, principal: Principal) -> None:
        self.policy, self.principal = policy, principal
        self._is_constant = type(policy) is Policy
        self._permitted_specs: WeakKeyDictionary[Tool, ToolSpec] = WeakKeyDictionary()
        self._last_selection: tuple[RegistrySnapshot, Mapping[str, Tool]] | None = None

    def decide(self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None = None) -> Decision:
        """Without arguments: whether the action may be called with any."""
        restriction = self.principal.explain_restriction(tool, capability)
        if restriction is not None:
            return Decision(verdict="deny", reason=restriction, rule=f"the restrictions of {self.principal.label}")
        if capability.is_withheld:
            reason = (
                f"{tool.spec.model_name(capability)} is withheld until you accept it. See: ferrule mcp diff {tool.id}"
            )
            return Decision(verdict="deny", reason=reason, rule="the accepted actions of MCP servers")
        decision = self.policy.decide(self.principal, tool, capability, arguments)
        if capability.changes and self.principal.kind == "agent" and decision.verdict == "allow":
            # Whatever a policy says: a model chose the call, by a text or for an effect that nobody has accepted.
            name = tool.spec.model_name(capability)
            reason = f"{name} has changed since you accepted it:\n{capability.changes}"
            return replace(decision, verdict="ask", reason=reason)
        return decision

    def may_call(self, tool: Tool, capability: ToolCapability) -> bool:
        """Return whether the action is listed, searched, described and suggested to the principal."""
        if self._is_constant and self.permitted_spec(tool) is tool.spec:
            return True
        return self.decide(tool, capability).verdict != "deny"

    def may_use(self, tool: Tool) -> bool:
        """Return whether any action of the tool may be called."""
        return bool(self.permitted_spec(tool).capabilities)

    def may_find(self, tool: Tool, action: str | None) -> bool:
        """Return whether a search finds a tool by an action, or without one by the tool itself."""
        capability = None if action is None else tool.spec.capability(action)
        return self.may_use(tool) if capability is None else self.may_call(tool, capability)

    def permitted_spec(self, tool: Tool) -> ToolSpec:
        """Return the tool's spec with only the actions that may be called."""
        spec = self._permitted_specs.get(tool)
        if spec is None:
            permitted = [c for c in tool.spec.capabilities if self.decide(tool, c).verdict != "deny"]
            is_complete = len(permitted) == len(tool.spec.capabilities)
            spec = tool.spec if is_complete else replace(tool.spec, capabilities=permitted)
            if self._is_constant:
                self._permitted_specs[tool] = spec
        return spec

    def select_tools(self, snapshot: RegistrySnapshot) -> Mapping[str, Tool]:
        """Return the tools that can and may be called, by id; of several with one id, the first that may."""
        if self._last_selection is not None and self._last_selection[0] is snapshot:
            return self._last_selection[1]
        selected = {i: tool for i in snapshot.by_id if (tool := self.select_tool(snapshot, i)) is not None}
        if self._is_constant:
            self._last_selection = (snapshot, selected)
        return selected

    def select_tool(self, snapshot: RegistrySnapshot, tool_id: str) -> Tool | None:
        candidates = snapshot.by_id.get(tool_id, ())
        return next((tool for tool in candidates if snapshot.is_callable(tool) and self.may_use(tool)), None)

    def find_tool(self, snapshot: RegistrySnapshot, name: str) -> Tool:
        """Return the first tool with a name that may be called. Raises ToolNotFound if none may be called."""
        try:
            tool = self.select_tool(snapshot, snapshot.find_tool(name).id)
            if tool is not None and name not in (tool.id, tool.spec.name, *tool.spec.aliases):  # an action's name
                tool = tool if self.permitted_spec(tool).capability(snapshot.find(name)[1].name) else None
        except ToolNotFound:
            if any(map(self.may_use, snapshot.by_id.get(name, ()))):  # it is not set up: the error says what it needs
                raise
            tool = None
        if tool is None:
            tools = self.select_tools(snapshot).values()
            names = (t.spec.model_name(c) for t in tools for c in self.permitted_spec(t).capabilities)
            raise ToolNotFound(f"There is no tool {name!r} here.{did_you_mean(name, names)}")
        return tool

    def list_denied(self, snapshot: RegistrySnapshot) -> Iterator[tuple[Tool, ToolCapability, str]]:
        """Yield the actions that rules of the policy deny, and why.

        Clients of a server get none, because they must not learn the names.
        """
        if self.principal.kind in ("client", "token") or self.principal.account:
            return
        for tool in filter(snapshot.is_callable, snapshot):
            for capability in tool.spec.capabilities:
                decision = self.decide(tool, capability)
                if (
                    decision.verdict == "deny"
                    and not capability.is_withheld
                    and self.principal.explain_restriction(tool, capability) is None
                ):
                    yield (
                        tool,
                        capability,
                        "" if decision.reason == _explain("deny", tool, capability) else decision.reason,
                    )

    def find_permitted_action(
        self, snapshot: RegistrySnapshot, name: str, action: str | None = None
    ) -> tuple[Tool, ToolCapability] | None:
        """Return the tool and action with a name, from the first tool that may be called; None without such a tool."""
        try:
            tool, capability = snapshot.find(name, action)
        except ToolNotFound:
            return None
        if self.may_call(tool, capability):
            return tool, capability
        other = self.select_tool(snapshot, tool.id)
        permitted = None if other is None else other.spec.capability(action)
        return None if other is None or permitted is None or not self.may_call(other, permitted) else (other, permitted)


class CombinedPolicy:
    """The policy of a call that is made inside another: both policies must allow it."""

    def __init__(self, policy: CallPolicy, outer: CallPolicy) -> None:
        self._policies = (outer, policy)

    def decide(
        self, principal: Principal, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None, /
    ) -> Decision:
        decisions = [policy.decide(principal, tool, capability, arguments) for policy in self._policies]
        strictest = max(decisions, key=lambda decision: _VERDICTS.index(decision.verdict))
        return replace(strictest, depends_on_arguments=any(d.depends_on_arguments for d in decisions))


def load_policy(name: str, options: Mapping[str, Any]) -> CallPolicy:
    """Return the policy that an installed package provides under the entry-point group `ferrule.policies`.

    An entry is a function that gets the other keys of `[policy]` and returns a `Policy`, or an object with its
    `decide` method.
    """
    from importlib.metadata import entry_points  # takes 20 ms to import

    entries = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in entries:
        raise SetupError(f"No installed package provides the policy {name!r}.{did_you_mean(name, entries)}")
    location = entries[name].value
    try:
        policy: CallPolicy = entries[name].load()(options)
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(f"The policy {name!r} cannot be loaded from {location!r}: {error_text(error)}") from error
    if not callable(getattr(policy, "decide", None)):
        raise SetupError(f"{location!r}, the policy {name!r}, returned {policy!r}, which has no method `decide`.")
    return policy
