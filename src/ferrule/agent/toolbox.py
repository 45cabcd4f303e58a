"""The tools a run offers its model: schemas and names, made once for as long as the tools stay the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ferrule.content import encode_json
from ferrule.describe.meta_tools import meta_tools
from ferrule.describe.schemas import NamedAction, actions_by_name, openai_schema
from ferrule.describe.tokens import estimate_tokens
from ferrule.library import UnifiedToolLibrary
from ferrule.messages import Schema
from ferrule.parsing import KnownTools
from ferrule.spec import Tool, ToolCapability
from ferrule.tools.conversation import CONTROL, control_tools

RELEVANT: Final = 10
"""Where not all tools can be shown: how many beside the core ones."""

KEPT: Final = 100
"""Offers for tasks of which it may be asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a model is offered."""

    schemas: Sequence[Schema]
    actions: Mapping[str, tuple[Tool, ToolCapability]]
    """By the names the model knows; also of those it is not shown but may find."""
    known: KnownTools
    """For reading calls out of text."""


class Toolbox:
    """Chooses what to offer. All tools if they are few; else the core ones, those that fit the task, and a search."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        *,
        tools: Collection[str] | None,
        core: Sequence[str],
        budget_tokens: int,
        own: bool = True,
    ) -> None:
        """`own=False` leaves out the tools that steer a run and those that find others."""
        self._library, self._core, self._budget = library, tuple(core), budget_tokens
        self.allowed = None if tools is None else frozenset(tools)
        # The agent's own: they are nobody else's business, so they are in no registry.
        self._control = {tool.id: tool for tool in control_tools()} if own else {}
        self._meta = {tool.id: tool for tool in meta_tools(library.index)} if own else {}
        self._made: dict[str, Offer] = {}
        self._version = -1

    def own(self, name: str) -> Tool | None:
        """The agent's own tool of this name."""
        return self._control.get(name) or self._meta.get(name)

    def allowed_names(self) -> frozenset[str] | None:
        """All that may be called: the tools it is held to, and its own."""
        return None if self.allowed is None else self.allowed | self._control.keys() | self._meta.keys()

    def offer(self, task: str) -> Offer:
        registry = self._library.engine.registry
        if self._version != registry.version:
            self._version = registry.version
            self._made.clear()
        found = self._made.get(task) or self._made.get("")
        if found is None:
            found, is_all = self._choose(task)
            if len(self._made) >= KEPT:
                self._made.clear()
            self._made["" if is_all else task] = found
        return found

    def _choose(self, task: str) -> tuple[Offer, bool]:
        """What to offer for a task, and whether that is the same for every task."""
        own = {**self._control, **self._meta}
        hidden = {*own, *CONTROL}  # to steer a run is nothing that a plan does
        snapshot = self._library.engine.registry.snapshot()
        known = {tool_id: tool for tool_id in snapshot.by_id if (tool := snapshot.get(tool_id)) is not None}
        usable = {tool_id: tool for tool_id, tool in known.items() if self.may_use(tool_id) and tool_id not in hidden}
        actions = actions_by_name((*usable.values(), *self._control.values()))
        by_id = {**usable, **own}
        schemas = [openai_schema(action) for action in actions]
        is_all = sum(map(_tokens, schemas)) <= self._budget
        if not is_all:
            found = actions_by_name(self._meta.values())
            schemas = [openai_schema(action) for action in (*self._shown(actions, task), *found)]
            actions = [*actions, *found]
        by_name = {action.name: (by_id[action.spec.tool_id], action.capability) for action in actions}
        return Offer(schemas=schemas, actions=by_name, known=KnownTools(schemas)), is_all

    def _shown(self, actions: Sequence[NamedAction], task: str) -> list[NamedAction]:
        first = {*self._core, *self._control}
        relevant = {hit.tool.id for hit in self._library.index.search(task, RELEVANT)}
        return [action for action in actions if action.spec.tool_id in first or action.spec.tool_id in relevant]

    def may_use(self, tool_id: str) -> bool:
        return self.allowed is None or tool_id in self.allowed


def _tokens(schema: Schema) -> int:
    return estimate_tokens(encode_json(schema).decode())
