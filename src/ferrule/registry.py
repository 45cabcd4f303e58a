"""All tools: found by id, name, tag, type, category or source.

The registry is a sequence of snapshots. A change makes the next snapshot and swaps it in; whoever holds one sees
it whole and unchanged for as long as they like. Several sources may bring a tool of one id: these are its
candidates, in order of their sources' priority. Within one source an id stands for one tool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from ferrule.errors import DuplicateTool, ToolNotFound
from ferrule.names import ACTION_SEPARATOR, did_you_mean
from ferrule.spec import Tool, ToolCapability, ToolCategory, ToolType

_T = TypeVar("_T")

_LONGEST_CHAIN = 6
"""Tools that need each other are named in a message up to here."""


@dataclass(frozen=True, kw_only=True)
class RegistrySnapshot:
    """The tools at one moment. Nothing in it ever changes."""

    version: int
    by_id: Mapping[str, tuple[Tool, ...]]
    """The candidates of each id, best first."""

    def __len__(self) -> int:
        return sum(map(len, self.by_id.values()))

    def __iter__(self) -> Iterator[Tool]:
        for candidates in self.by_id.values():
            yield from candidates

    def get(self, tool_id: str) -> Tool | None:
        """The first candidate of an id that can be called."""
        return next((tool for tool in self.by_id.get(tool_id, ()) if self.is_callable(tool)), None)

    def is_callable(self, tool: Tool) -> bool:
        """Whether a tool is enabled and set up, and all it depends on can be called too."""
        return tool.spec.enabled and tool not in self.unmet

    @cached_property
    def unmet(self) -> Mapping[Tool, tuple[str, ...]]:
        """The enabled tools that cannot be called, and which of the ids they depend on cannot be either.

        One that is not set up stands here whatever it depends on.
        """
        return MappingProxyType(_unmet(self.by_id))

    def why_unavailable(self, tool: Tool) -> str | None:
        """What an enabled tool needs and has not; None when it can be called."""
        unmet = self.unmet.get(tool)
        if unmet is None:
            return None
        if tool.needs:
            return f"it needs {tool.needs}"
        hints = (did_you_mean(tool_id, self.by_id) for tool_id in unmet if tool_id not in self.by_id)
        return f"it needs {', and '.join(map(self._why_unmet, unmet))}.{''.join(hints)}"

    def _why_unmet(self, tool_id: str) -> str:
        """`'b', which needs 'c', which is disabled`."""
        said, seen = repr(tool_id), {tool_id}
        while (tool := next((t for t in self.by_id.get(tool_id, ()) if t in self.unmet), None)) is not None:
            if tool.needs:
                return f"{said}, which needs {tool.needs}"
            tool_id = self.unmet[tool][0]
            said += f", which needs {tool_id!r}"
            if tool_id in seen:
                return f"{said} again: a circle"
            if len(seen) == _LONGEST_CHAIN:
                return f"{said} and so on"
            seen.add(tool_id)
        return f"{said}, which is {'disabled' if tool_id in self.by_id else 'not there'}"

    def knows(self, name: str) -> bool:
        """Whether `find` might find something; to be told why it does not costs more, the more tools there are."""
        return name in self.by_id or name in self._by_model_name or name in self._by_name or ACTION_SEPARATOR in name

    def find_tool(self, name: str) -> Tool:
        """The tool a caller means by an id, a model's name for one of its actions, or a display name."""
        known = self._by_model_name.get(name)  # in the order of `find`: what is allowed is what is called
        tool = self.get(name) or (known[0] if known is not None else self._by_name.get(name))
        if tool is None:
            raise ToolNotFound(self._why_not_found(name))
        return tool

    def find(self, name: str, action: str | None = None) -> tuple[Tool, ToolCapability]:
        """The tool and action a caller means by an id, a model's name for it, or a display name."""
        tool = self.get(name)
        if tool is None and (known := self._by_model_name.get(name)) is not None:
            if action in (None, "", known[1].name):
                return known
            raise ToolNotFound(
                f"{name!r} means the action {known[1].name!r} of {known[0].id!r}: name no other one with it."
            )
        if tool is None:
            tool = self._by_name.get(name)
        if tool is None and action is None and ACTION_SEPARATOR in name:
            before, _, after = name.partition(ACTION_SEPARATOR)
            if (owner := self.get(before) or self._by_name.get(before)) is not None:
                tool, action = owner, after
        if tool is None:
            raise ToolNotFound(self._why_not_found(name))
        return tool, action_of(tool, action)

    def require(self, tool: Tool) -> None:
        """ToolNotFound, with the reason, for a tool that cannot be called."""
        if not self.is_callable(tool):
            raise ToolNotFound(self._why_not_callable(tool))

    def select(self, wanted: Callable[[Tool], bool]) -> list[Tool]:
        return [tool for tool in self if wanted(tool)]

    @cached_property
    def _by_name(self) -> dict[str, Tool]:
        callable_tools = [tool for tool in self if self.is_callable(tool)]
        aliases = ((alias, tool) for tool in callable_tools for alias in tool.spec.aliases)
        return _first(chain(((tool.spec.name, tool) for tool in callable_tools), aliases))

    @cached_property
    def _by_model_name(self) -> dict[str, tuple[Tool, ToolCapability]]:
        return _first((t.spec.model_name(c), (t, c)) for t in self if self.is_callable(t) for c in t.spec.capabilities)

    def _why_not_callable(self, tool: Tool) -> str:
        reason = self.why_unavailable(tool)
        if reason is None:
            return f"Tool {tool.id!r} is disabled. Enable it, or use another one."
        return f"Tool {tool.id!r} is unavailable: {reason}"

    def _why_not_found(self, name: str) -> str:
        for tool in (*(tool for tool in self.unmet if name in _names(tool)), *self.by_id.get(name, ())):
            return self._why_not_callable(tool)
        known = [*self.by_id, *self._by_name, *self._by_model_name]
        near = did_you_mean(name, known)
        return f"There is no tool {name!r}.{near or ' List the tools to see what there is.'}"


class ToolRegistry:
    """The tools as they are now."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, tuple[Tool, ...]] = {}
        self._version = 0
        self._snapshot: RegistrySnapshot | None = None
        self.change(add=tools)

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def snapshot(self) -> RegistrySnapshot:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = RegistrySnapshot(version=self._version, by_id=MappingProxyType(self._by_id))
            return self._snapshot

    # Changing

    def add(self, *tools: Tool) -> None:
        """Add tools that are new in their source."""
        self.change(add=tools)

    def replace(self, *tools: Tool) -> None:
        """Put tools in the place of those with their ids in their sources, or add them."""
        with self._lock:
            self._change([old for tool in tools if (old := self._owned(tool.id, tool.source))], tools)

    def remove(self, tool_id: str, source: str | None = None) -> list[Tool]:
        """Take out a tool, or only what one source brought of it; returns what was taken out."""
        with self._lock:
            gone = [t for t in self._by_id.get(tool_id, ()) if source is None or t.source == source]
            self._change(gone, ())
            return gone

    def enable(self, tool_id: str) -> None:
        self._set_enabled(tool_id, True)

    def disable(self, tool_id: str) -> None:
        """Keep a tool but let nobody call it."""
        self._set_enabled(tool_id, False)

    def change(self, *, remove: Iterable[Tool] = (), add: Iterable[Tool] = ()) -> None:
        """All of it, or, when it cannot be done, nothing: readers never see a part."""
        with self._lock:
            self._change(remove, add)

    def _change(self, remove: Iterable[Tool], add: Iterable[Tool]) -> None:
        # A dictionary that was handed out in a snapshot is never touched again; one that was not may be.
        tools = dict(self._by_id) if self._snapshot is not None else self._by_id
        undo: dict[str, tuple[Tool, ...] | None] = {}
        try:
            for tool in remove:
                undo.setdefault(tool.id, tools.get(tool.id))
                _take_out(tools, tool)
            for tool in add:
                undo.setdefault(tool.id, tools.get(tool.id))
                _put_in(tools, tool)
        except BaseException:
            for tool_id, before in undo.items():
                if before is None:
                    tools.pop(tool_id, None)
                else:
                    tools[tool_id] = before
            raise
        if undo:
            self._by_id, self._snapshot = tools, None
            self._version += 1

    # Reading

    def __len__(self) -> int:
        return len(self.snapshot())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.snapshot())

    def __contains__(self, tool_id: object) -> bool:
        return tool_id in self._by_id

    def get(self, tool_id: str) -> Tool | None:
        return self.snapshot().get(tool_id)

    def candidates(self, tool_id: str) -> tuple[Tool, ...]:
        """Every tool of this id, best first, disabled ones included."""
        return self._by_id.get(tool_id, ())

    def find(self, name: str, action: str | None = None) -> tuple[Tool, ToolCapability]:
        return self.snapshot().find(name, action)

    def find_tool(self, name: str) -> Tool:
        return self.snapshot().find_tool(name)

    def is_one_of(self, name: str, allowed: Collection[str]) -> bool:
        """Whether a name is allowed: it is listed itself, or the id of the tool it means is."""
        if name in allowed:
            return True
        try:
            return self.find_tool(name).id in allowed
        except ToolNotFound:
            return False

    def by_name(self, name: str) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.name == name)

    def by_tag(self, *tags: str) -> list[Tool]:
        """Tools that have any of the tags; case does not matter."""
        wanted = {tag.casefold() for tag in tags}
        return self.snapshot().select(lambda tool: any(tag.casefold() in wanted for tag in tool.spec.tags))

    def by_type(self, tool_type: ToolType) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.tool_type == tool_type)

    def by_category(self, category: ToolCategory | str) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.category == category)

    def by_source(self, source: str) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.source == source)

    def _owned(self, tool_id: str, source: str) -> Tool | None:
        return next((t for t in self._by_id.get(tool_id, ()) if t.source == source), None)

    def _set_enabled(self, tool_id: str, enabled: bool) -> None:
        with self._lock:
            tools = self._by_id.get(tool_id, ())
            self._change(tools, [replace(tool, spec=replace(tool.spec, enabled=enabled)) for tool in tools])
        if not tools:
            raise ToolNotFound(self.snapshot()._why_not_found(tool_id))


def action_of(tool: Tool, action: str | None) -> ToolCapability:
    """The action of a tool that a caller means."""
    capability = tool.spec.capability(action)
    if capability is None:
        what = f"has no action {action!r}" if action else "has several actions: say which one to call"
        raise ToolNotFound(f"Tool {tool.id!r} {what}. {tool.spec.describe_actions(action)}")
    return capability


def _put_in(tools: dict[str, tuple[Tool, ...]], tool: Tool) -> None:
    there = tools.get(tool.id, ())
    for other in there:
        if other.source == tool.source:
            raise DuplicateTool(
                f"Two tools are called {tool.id!r}: one from {other.origin or other.source}, "
                f"one from {tool.origin or tool.source}. Rename one of them."
            )
    tools[tool.id] = (tool,) if not there else tuple(sorted((*there, tool), key=lambda t: t.priority))


def _unmet(by_id: Mapping[str, tuple[Tool, ...]]) -> dict[Tool, tuple[str, ...]]:
    enabled = [tool for tools in by_id.values() for tool in tools if tool.spec.enabled]
    waiting = {tool: set(tool.spec.dependencies) for tool in enabled if tool.spec.dependencies or tool.needs}
    if not waiting:
        return {}
    dependents: dict[str, list[Tool]] = {}
    for tool, needs in waiting.items():
        for tool_id in needs:
            dependents.setdefault(tool_id, []).append(tool)
    # From those that need nothing upwards; whoever stands in a circle is never reached.
    found = [tool.id for tool in enabled if tool not in waiting]
    while found:
        tool_id = found.pop()
        for tool in dependents.pop(tool_id, ()):
            waiting[tool].discard(tool_id)
            if not waiting[tool] and not tool.needs:
                del waiting[tool]
                found.append(tool.id)
    return {tool: tuple(i for i in tool.spec.dependencies if i in needs) for tool, needs in waiting.items()}


def _names(tool: Tool) -> set[str]:
    """What a tool and its actions may be called by."""
    return {tool.id, tool.spec.name, *tool.spec.aliases, *map(tool.spec.model_name, tool.spec.capabilities)}


def _take_out(tools: dict[str, tuple[Tool, ...]], tool: Tool) -> None:
    left = tuple(t for t in tools.get(tool.id, ()) if t is not tool)
    if left:
        tools[tool.id] = left
    else:
        tools.pop(tool.id, None)


def _first(pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found
