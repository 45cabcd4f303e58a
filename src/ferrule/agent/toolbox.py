"""The tools a run offers its model, computed again only when the tools change, and which of them a call refers to."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

from ferrule.agent.calls import RunCall, unwrap_call_tool
from ferrule.agent.control_tools import CONTROL_TOOLS, control_tools
from ferrule.agent.run import Run
from ferrule.catalog.model_schemas import NamedAction, estimate_schema_tokens
from ferrule.catalog.registry import RegistrySnapshot, ToolRegistry
from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.messages import Schema, ToolCall
from ferrule.core.permission import CallPolicy, Decision, Principal, matches_any
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngineConfig
from ferrule.engine.config import NO_FOLDER
from ferrule.errors import SetupError
from ferrule.kinds.function.tools import collect_tools
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.library.library import UnifiedToolLibrary
from ferrule.library.meta_tools import META_TOOLS, make_meta_tools
from ferrule.parsing import KnownTools
from ferrule.policy.policy import Policy
from ferrule.texts.language import detect_language
from ferrule.texts.shorten import first_sentence

MAX_SCHEMA_TOKENS: Final = 2_000
"""Up to this many tokens of schemas, all tools are shown."""
MAX_NAMED_SCHEMA_TOKENS: Final = 20_000
"""The same, for tools that the caller named, and for models whose prompts do not contain the schemas."""
MAX_PROJECT_SCHEMA_TOKENS: Final = 1_000
"""Up to this many tokens of schemas, all tools of the project itself are shown, whatever the task is."""
_PROJECT_SOURCES: Final = frozenset({"tools", "skills", "mcps"})
MAX_RELEVANT_TOOLS: Final = 10
"""How many actions are shown besides the core tools, if not all fit."""
MAX_SELECTED_TOKENS: Final = 1_900
"""Of all schemas together, if not all tools fit: the rest is found by a search."""
MAX_USED_TOOLS: Final = 5
"""Of the actions shown besides the core tools, how many may be there because the run has used them."""
_MAX_CANDIDATES: Final = 40
"""Actions that are considered; of these, those that fit are shown."""

MAX_CACHED_OFFERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """The tools a model is offered."""

    schemas: Sequence[Schema]
    actions: Mapping[str, tuple[Tool, ToolCapability]]
    """By the names that models use; includes tools that are not shown but can be found by a search."""
    known_tools: KnownTools
    """For parsing calls in text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableActions:
    """The actions that a run may call."""

    by_id: dict[str, Tool]
    actions: Sequence[NamedAction]
    names: Set[str]
    fits_in_request: bool
    """Whether the schemas of all of them fit into one request."""
    are_many: bool
    """Whether there are so many that the words of a task alone rarely find the best."""


class Toolbox:
    """Chooses the tools to offer: all if they fit; otherwise the core tools, those that fit the task, and a search.

    It also executes calls, as a `Caller`, because the agent's own tools are in no registry.
    """

    def __init__(
        self,
        library: UnifiedToolLibrary,
        *,
        principal: Principal,
        policy: CallPolicy | None,
        core: Sequence[str],
        budget_tokens: int,
        own: bool = True,
        shown_control_tools: Collection[str] = (),
    ) -> None:
        """`own=False` omits the tools that control a run and those that find other tools.

        The model may call any tool that controls a run; only the `shown_control_tools` are described to it.
        """
        self._library, self._core, self._budget = library, tuple(core), budget_tokens
        self.allowed = principal.tools
        # The agent's own tools: no other caller may use them, so they are in no registry.
        self._control = {tool.id: tool for tool in control_tools()} if own else {}
        self._shown_control_tools = frozenset(shown_control_tools)
        self._has_meta_tools = own
        own_names = frozenset({*self._control, *(META_TOOLS if own else ())})
        self.principal = principal.extended_by(own_names)
        """The agent, which may use its own tools besides those it is restricted to."""
        self.permissions = library.engine.permissions(self.principal, policy)
        self._actions_by_name = library.descriptions.actions_by_name
        self._offers: dict[Hashable, ToolOffer] = {}
        self._usable: UsableActions | None = None
        self._version = -1

    @cached_property
    def _meta_tools(self) -> dict[str, Tool]:
        """Return the tools that find and call other tools. They are built only for agents that need them."""
        return (
            {tool.id: tool for tool in make_meta_tools(self._library.index, self._library.engine)}
            if self._has_meta_tools
            else {}
        )

    def get_own_tool(self, name: str) -> Tool | None:
        """Return the agent's own tool with this name, if it has one."""
        return self._control.get(name) or (self._meta_tools.get(name) if name in META_TOOLS else None)

    @property
    def tools(self) -> Collection[Tool]:
        """Return all tools that can and may be called."""
        return self._usable_actions().by_id.values()

    async def prepare(self, task: str) -> None:
        """Let the tools be chosen by the meaning of the task too, not only by its words.

        The encoder takes a second to load. Of a few tools, the words of an English task find the right ones without it,
        and `search_tools` finds others.
        """
        await self._library.engine.wait_for_pins()  # what is accepted is in the prompt
        usable = self._usable_actions()
        if not usable.fits_in_request and (usable.are_many or not task.isascii()):
            await self._library.index.prepare(task)

    def offer(self, task: str, used: Sequence[str] = ()) -> ToolOffer:
        """Return the tools for a task. The first of those in `used`, by their names for models, are shown again."""
        usable = self._usable_actions()
        used = [name for name in used if name in usable.names][:MAX_USED_TOOLS] if not usable.fits_in_request else ()
        key = (
            detect_language(task)
            if usable.fits_in_request
            else (task, frozenset(used), self._library.index.uses_vectors(task))
        )
        offer = self._offers.get(key)
        if offer is None:
            offer = self._build_offer(usable, task, used)
            if len(self._offers) >= MAX_CACHED_OFFERS:
                self._offers.clear()
            self._offers[key] = offer
        return offer

    def _usable_actions(self) -> UsableActions:
        """Return all actions that can and may be called. They are looked up again when the tools have changed."""
        registry = self._library.engine.registry
        if self._usable is None or self._version != registry.version:
            self._version = registry.version
            self._offers.clear()
            self._usable = self._find_usable_actions(registry.snapshot())
        return self._usable

    def _find_usable_actions(self, snapshot: RegistrySnapshot) -> UsableActions:
        # A plan has no tools of its own: it may use registered tools with the names of the meta tools.
        hidden = {*CONTROL_TOOLS, *(META_TOOLS if self._has_meta_tools else ())}
        permitted = self.permissions.select_tools(snapshot)
        by_id = {tool_id: tool for tool_id, tool in permitted.items() if tool_id not in hidden} | self._control
        actions = [
            action
            for action in self._actions_by_name(by_id.values())
            if self.permissions.may_call(by_id[action.spec.tool_id], action.capability)
        ]
        return UsableActions(
            by_id=by_id,
            actions=actions,
            names={action.name for action in actions},
            fits_in_request=_have_at_most(self._budget, actions),
            are_many=not _have_at_most(MAX_NAMED_SCHEMA_TOKENS, actions),
        )

    def _build_offer(self, usable: UsableActions, task: str, used: Sequence[str]) -> ToolOffer:
        actions, by_id = usable.actions, usable.by_id
        if usable.fits_in_request:
            schemas = [action.openai_schema for action in actions]
        else:
            search_actions = self._actions_by_name(filter(self.permissions.may_use, self._meta_tools.values()))
            selected = self._select_schemas(usable, search_actions, task, used)
            schemas = [*selected, *(action.openai_schema for action in search_actions)]
            actions, by_id = [*actions, *search_actions], by_id | self._meta_tools
        by_name = {action.name: (by_id[action.spec.tool_id], action.capability) for action in actions}
        control_actions = self._actions_by_name(control_tools(detect_language(task))) if self._control else ()
        control = {action.name: action.openai_schema for action in control_actions if action.name in usable.names}
        others = {str(schema["function"]["name"]): schema for schema in schemas}
        hidden = self._control.keys() - self._shown_control_tools
        visible = {name: control.get(name, schema) for name, schema in others.items() if name not in hidden}
        known_tools = KnownTools([*visible.values(), *control.values()])
        return ToolOffer(schemas=list(visible.values()), actions=by_name, known_tools=known_tools)

    def _select_schemas(
        self, usable: UsableActions, search_actions: Sequence[NamedAction], task: str, used: Sequence[str]
    ) -> list[Schema]:
        """Return the schemas of core tools, tools that the run has used, and the best for the task, while they fit.

        In the order of their names, so that the prompt cache of a model stays valid.
        """
        project = [action for action in usable.actions if usable.by_id[action.spec.tool_id].source in _PROJECT_SOURCES]
        if sum(action.tokens for action in project) > min(MAX_PROJECT_SCHEMA_TOKENS, self._budget):
            project = []
        first = {*self._core, *self._control, *(action.spec.tool_id for action in project)}
        always = [action for action in usable.actions if action.spec.tool_id in first]
        selected = {action.name: action.openai_schema for action in always}
        remaining = MAX_SELECTED_TOKENS - sum(action.tokens for action in (*always, *search_actions))
        by_action = {(a.spec.tool_id, a.capability.name): a for a in usable.actions}
        hits = self._library.index.search_actions(
            task,
            _MAX_CANDIDATES,
            is_visible=lambda tool, action: (tool.id, action) in by_action and usable.by_id[tool.id] is tool,
        )
        candidates = [*(a for a in usable.actions if a.name in used), *(by_action[h.tool.id, h.action] for h in hits)]
        max_count = len(selected) + MAX_RELEVANT_TOOLS
        for action in candidates:
            schema = _schema_within(action, remaining) if action.name not in selected else None
            if schema is not None and len(selected) < max_count:
                selected[action.name] = schema
                remaining -= estimate_schema_tokens(schema)
        return [selected[name] for name in sorted(selected)]

    def resolve(self, original: ToolCall, offer: ToolOffer) -> RunCall:
        """Return the call with the tool that it refers to.

        A policy can only decide about tools that are known, so every name is resolved before a person is asked: the
        name in a schema, the name of an action alone, any other name the library knows, and `call_tool`, which wraps
        another call.
        """
        call = unwrap_call_tool(original)
        if call.error is not None:
            return RunCall(call=call, original=original)
        target = offer.actions.get(call.name)
        own = self.get_own_tool(call.name)
        if own is not None:
            target = target or (own, own.spec.capabilities[0])
            return RunCall(call=call, original=original, target=target, candidates=(target,))
        name, action = (call.name, None) if target is None else (target[0].id, target[1].name)
        candidates = [(c.tool, c.capability) for c in self._library.hub.find_by_name(name, action)]
        if target is not None or not candidates:
            return RunCall(call=call, original=original, target=target, candidates=candidates)
        candidates = [candidate for candidate in candidates if self.permissions.may_call(*candidate)]
        if not candidates:  # the engine refuses it, and names only what the model has named
            return RunCall(call=call, original=original)
        names = dict.fromkeys(tool.spec.model_name(capability) for tool, capability in candidates)
        if len(names) > 1:
            error = f"{call.name!r} may mean {' or '.join(names)}: write which one you mean."
            return RunCall(call=replace(call, error=error), original=original)
        return RunCall(call=call, original=original, target=candidates[0], candidates=candidates)

    async def execute(
        self,
        tool_name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult:
        """Call one of the agent's own tools, or any other through the hub."""
        own = self.get_own_tool(tool_name)
        if own is None:
            return await self._library.hub.execute(
                tool_name, params, context, action=action, timeout=timeout, on_progress=on_progress
            )
        return await self._library.engine.execute_candidate(
            own, action, params, context, timeout=timeout, on_progress=on_progress
        )


def _have_at_most(tokens: int, actions: Sequence[NamedAction]) -> bool:
    """Return whether all schemas together have at most this many tokens. Of thousands, only the first are counted."""
    return all(total <= tokens for total in accumulate(action.tokens for action in actions))


def _schema_within(action: NamedAction, tokens: int) -> Schema | None:
    """Return the schema of an action, if needed without descriptions of parameters, or None if it is too long."""
    schema = action.openai_schema
    if action.tokens <= tokens:
        return schema
    function = schema["function"]
    parameters = {**function["parameters"]}
    parameters["properties"] = {
        name: {key: value for key, value in inner.items() if key != "description"} if isinstance(inner, dict) else inner
        for name, inner in parameters["properties"].items()
    }
    short = {**function, "description": first_sentence(function["description"]), "parameters": parameters}
    schema = {**schema, "function": short}
    return schema if estimate_schema_tokens(schema) <= tokens else None


def register_functions(library: UnifiedToolLibrary, tools: Collection[Any]) -> set[str]:
    """Return the names of the tools. Register what is not a name, unless it is registered."""
    if isinstance(tools, str):
        raise SetupError(f"tools must be a list: write tools=[{tools!r}].")
    names = {tool for tool in tools if isinstance(tool, str)}
    for tool in (tool for thing in tools if not isinstance(thing, str) for tool in collect_tools(thing)):
        names.add(tool.id)
        if all(other.fingerprint != tool.fingerprint for other in library.engine.registry.candidates(tool.id)):
            library.register(tool)
    return names


class AgentLibrary:
    """The library of an agent that was given functions. It is open while the agent is used."""

    def __init__(self, tools: Collection[Any]) -> None:
        config = ToolEngineConfig(
            tools_directory=NO_FOLDER,
            auto_reload=False,
            builtin_tools=any(isinstance(tool, str) for tool in tools),
        )
        # A file, because a run that waits for a person must be there when the library is opened again.
        folder = tempfile.mkdtemp(prefix="ferrule-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.library = UnifiedToolLibrary(config, store=f"sqlite:///{folder}/runs.db")
        self._users = 0
        self._change: asyncio.Future[None] | None = None
        """Opens or closes the library."""

    async def __aenter__(self) -> None:
        self._users += 1
        if self._users == 1:
            self._change = asyncio.ensure_future(self._run_after(self._change, self.library.initialize()))
        assert self._change is not None
        try:
            await asyncio.shield(self._change)
        except BaseException:
            self._users -= 1
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0:
            self._change = asyncio.ensure_future(self._run_after(self._change, self.library.aclose()))
            await asyncio.shield(self._change)

    async def _run_after(self, earlier: asyncio.Future[None] | None, change: Awaitable[None]) -> None:
        if earlier is not None and earlier.get_loop() is asyncio.get_running_loop():
            with suppress(Exception):
                await earlier
        await change


def policy_of_run(run: Run, policy: CallPolicy, registry: ToolRegistry) -> CallPolicy:
    """Return the policy, with the tools that trusted skills of the run bring."""
    if isinstance(policy, Policy) and policy.trusted_skills:
        return SkillPolicy(policy, run, registry)
    return policy


class SkillPolicy:
    """The policy of a run in which the tools of trusted, active skills (`allowed-tools`) need no approval.

    Only the default of the policy is changed: a rule of the user comes first.
    """

    def __init__(self, policy: Policy, run: Run, registry: ToolRegistry) -> None:
        self._policy, self._run, self._registry = policy, run, registry

    def decide(
        self, principal: Principal, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None, /
    ) -> Decision:
        decision = self._policy.decide(principal, tool, capability, arguments)
        if decision.verdict != "ask" or decision.rule or capability.changes:
            return decision
        is_granted = matches_any(self._granted_tools(), tool, capability)
        return replace(decision, verdict="allow" if is_granted else "ask", depends_on_arguments=True)

    def _granted_tools(self) -> frozenset[str]:
        activations = {step.tool_id for step in self._run.steps if step.is_success and step.action == "activate"}
        trusted = self._policy.trusted_skills
        skills = [tool for tool in map(self._registry.get, activations & trusted.keys()) if tool is not None]
        return frozenset(
            name
            for tool in skills
            if isinstance(tool.target, SkillFolder) and tool.target.digest == trusted[tool.id]
            for name in tool.spec.metadata.get("allowed_tools", ())
        )
