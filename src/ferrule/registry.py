"""All tools: found by id, name, tag, type, category or source.

The registry is a sequence of snapshots. A change makes the next snapshot and swaps it in; whoever holds one sees
it whole and unchanged for as long as they like. Several sources may bring a tool of one id: these are its
candidates, in order of their sources' priority. Within one source an id stands for one tool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from ferrule.errors import DuplicateTool, ToolNotFound
from ferrule.names import ACTION_SEPARATOR, did_you_mean
from ferrule.spec import Tool, ToolCapability, ToolCategory, ToolType

_T = TypeVar("_T")


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
        """The first enabled candidate of an id."""
        return next((tool for tool in self.by_id.get(tool_id, ()) if tool.spec.enabled), None)

    def find_tool(self, name: str) -> Tool:
        """The tool a caller means by an id, a model's name for one of its actions, or a display name."""
        tool = self.get(name) or self._by_name.get(name)
        if tool is None and (known := self._by_model_name.get(name)) is not None:
            tool = known[0]
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

    def select(self, wanted: Callable[[Tool], bool]) -> list[Tool]:
        return [tool for tool in self if wanted(tool)]

    @cached_property
    def _by_name(self) -> dict[str, Tool]:
        return _first((tool.spec.name, tool) for tool in self if tool.spec.enabled)

    @cached_property
    def _by_model_name(self) -> dict[str, tuple[Tool, ToolCapability]]:
        return _first((t.spec.model_name(c), (t, c)) for t in self if t.spec.enabled for c in t.spec.capabilities)

    def _why_not_found(self, name: str) -> str:
        if name in self.by_id:
            return f"Tool {name!r} is disabled. Enable it, or use another one."
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
