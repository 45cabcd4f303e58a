"""All tools, by id, name, tag, type, category or source.

The registry is a sequence of immutable snapshots: a change creates the next one and swaps it in, and readers of an
older one are not affected. Several sources may have a tool with the same id: these are its candidates, in order of
their sources' priority. Within one source an id is unique.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from ferrule.core.names import ACTION_SEPARATOR, did_you_mean, model_name, split_model_name
from ferrule.core.spec import Tool, ToolCapability, ToolCategory, ToolSpec, ToolType
from ferrule.errors import DuplicateTool, ToolNotFound

_T = TypeVar("_T")

_MAX_CHAIN = 6
"""Dependencies named in one message."""


@dataclass(frozen=True, kw_only=True)
class RegistrySnapshot:
    """The tools at one point in time. Never changes."""

    version: int
    by_id: Mapping[str, tuple[Tool, ...]]
    """The candidates of each id, best first."""

    def __len__(self) -> int:
        return sum(map(len, self.by_id.values()))

    def __iter__(self) -> Iterator[Tool]:
        for candidates in self.by_id.values():
            yield from candidates

    def get(self, tool_id: str) -> Tool | None:
        """Return the first candidate of an id that can be called."""
        return next((tool for tool in self.by_id.get(tool_id, ()) if self.is_callable(tool)), None)

    @cached_property
    def callable_tools(self) -> list[Tool]:
        """Return the first callable candidate of each id, in the order of their names for models."""
        return sorted(filter(None, map(self.get, self.by_id)), key=lambda tool: model_name(tool.id))

    def is_callable(self, tool: Tool) -> bool:
        """Return whether a tool is enabled and set up, and so is everything it depends on."""
        return tool.spec.enabled and tool not in self.unavailable

    @cached_property
    def unavailable(self) -> Mapping[Tool, tuple[str, ...]]:
        """Return the enabled tools that cannot be called, each with its dependencies that cannot be called either.

        A tool that is not set up is included even if it has no dependencies.
        """
        return MappingProxyType(_find_unavailable(self.by_id))

    def why_unavailable(self, tool: Tool) -> str | None:
        """Return what an enabled tool needs before it can be called; None when it can be called."""
        missing = self.unavailable.get(tool)
        if missing is None:
            return None
        if tool.needs:
            return f"it needs {tool.needs}"
        hints = (did_you_mean(tool_id, self.by_id) for tool_id in missing if tool_id not in self.by_id)
        return f"it needs {', and '.join(map(self._describe_chain, missing))}.{''.join(hints)}"

    def _describe_chain(self, tool_id: str) -> str:
        """Return `'b', which needs 'c', which is disabled`."""
        chain, visited = repr(tool_id), {tool_id}
        while (tool := next((t for t in self.by_id.get(tool_id, ()) if t in self.unavailable), None)) is not None:
            if tool.needs:
                return f"{chain}, which needs {tool.needs}"
            tool_id = self.unavailable[tool][0]
            chain += f", which needs {tool_id!r}"
            if tool_id in visited:
                return f"{chain} again: a circular dependency"
            if len(visited) == _MAX_CHAIN:
                return f"{chain} and so on"
            visited.add(tool_id)
        return f"{chain}, which {'is disabled' if tool_id in self.by_id else 'does not exist'}"

    def is_hidden(self, tool_id: str, action: str) -> bool:
        """Return whether the name of an action is the id of another tool: then the name means that tool."""
        if not self._ids_like_actions or tool_id in self._ids_like_actions:
            return False
        return model_name(tool_id, action) in self._ids_like_actions

    @cached_property
    def _ids_like_actions(self) -> frozenset[str]:
        return frozenset(tool.id for tool in self if ACTION_SEPARATOR in tool.id and len(tool.spec.capabilities) == 1)

    def may_contain(self, name: str) -> bool:
        """Return whether `find` may succeed. The error of `find` costs more: it compares the name with all tools."""
        return name in self.by_id or name in self._by_model_name or name in self._by_name or ACTION_SEPARATOR in name

    def find_tool(self, name: str) -> Tool:
        """Return the tool with this id, model name (of one of its actions) or display name."""
        action = self._by_model_name.get(name)  # in the order of `find`: what is allowed is what is called
        tool = self.get(name) or (action[0] if action is not None else self._by_name.get(name))
        if tool is None:
            raise ToolNotFound(self._why_not_found(name))
        return tool

    def find(self, name: str, action: str | None = None) -> tuple[Tool, ToolCapability]:
        """Return the tool and action with this id, model name or display name."""
        tool = self.get(name)
        if tool is not None and action is None and tool.spec.capability() is None and name in self._by_model_name:
            tool = None  # a call of this tool would have to name one of its actions
        if tool is None and (match := self._by_model_name.get(name)) is not None:
            if action in (None, "", match[1].name):
                return match
            raise ToolNotFound(
                f"{name!r} is the action {match[1].name!r} of {match[0].id!r}: do not pass another action with it."
            )
        if tool is None:
            tool = self._by_name.get(name)
        if tool is None and action is None and ACTION_SEPARATOR in name:
            before, after = split_model_name(name)
            if (owner := self.get(before) or self._by_name.get(before)) is not None:
                tool, action = owner, after
        if tool is None:
            raise ToolNotFound(self._why_not_found(name))
        return tool, find_action(tool, action)

    def require_callable(self, tool: Tool) -> None:
        """Raise ToolNotFound, with the reason, for a tool that cannot be called."""
        if not self.is_callable(tool):
            raise ToolNotFound(self._why_not_callable(tool))

    def select(self, condition: Callable[[Tool], bool]) -> list[Tool]:
        return [tool for tool in self if condition(tool)]

    @cached_property
    def _by_name(self) -> dict[str, Tool]:
        callable_tools = [tool for tool in self if self.is_callable(tool)]
        aliases = ((alias, tool) for tool in callable_tools for alias in tool.spec.aliases)
        return _first_by_key(chain(((tool.spec.name, tool) for tool in callable_tools), aliases))

    @cached_property
    def _by_model_name(self) -> dict[str, tuple[Tool, ToolCapability]]:
        return _first_by_key(
            (t.spec.model_name(c), (t, c)) for t in self if self.is_callable(t) for c in t.spec.capabilities
        )

    def _why_not_callable(self, tool: Tool) -> str:
        reason = self.why_unavailable(tool)
        if reason is None:
            return f"Tool {tool.id!r} is disabled. Enable it, or use another one."
        return f"Tool {tool.id!r} is unavailable: {reason}"

    def _why_not_found(self, name: str) -> str:
        disabled = (tool for tool in self if not tool.spec.enabled)
        for tool in (*self.unavailable, *disabled):
            spec = tool.spec
            names = {tool.id, spec.name, *spec.aliases, *map(spec.model_name, spec.capabilities)}
            if name in names or name.startswith(f"{tool.id}{ACTION_SEPARATOR}"):
                return self._why_not_callable(tool)
        hint = did_you_mean(name, [*self.by_id, *self._by_name, *self._by_model_name])
        return f"There is no tool {name!r}.{hint or ' List the tools to see which exist.'}"


class ToolRegistry:
    """The current tools, and changes to them."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, tuple[Tool, ...]] = {}
        self.version = 0
        """Increases with every change."""
        self._snapshot: RegistrySnapshot | None = None
        self.remove_and_add(add=tools)

    def snapshot(self) -> RegistrySnapshot:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = RegistrySnapshot(version=self.version, by_id=MappingProxyType(self._by_id))
            return self._snapshot

    # Changing

    def add(self, *tools: Tool) -> None:
        """Add tools that are new in their source."""
        self.remove_and_add(add=tools)

    def replace(self, *tools: Tool) -> None:
        """Replace the tools with the same id and source, or add them."""
        with self._lock:
            self._change([t for tool in tools for t in self.candidates(tool.id) if t.source == tool.source], tools)

    def remove(self, tool_id: str, source: str | None = None) -> list[Tool]:
        """Remove a tool, or only its candidate from one source; returns the removed tools."""
        with self._lock:
            removed = [t for t in self._by_id.get(tool_id, ()) if source is None or t.source == source]
            self._change(removed, ())
            return removed

    def enable(self, tool_id: str) -> None:
        self._set_enabled(tool_id, True)

    def disable(self, tool_id: str) -> None:
        """Keep a tool, but do not let it be called."""
        self._set_enabled(tool_id, False)

    def remove_and_add(self, *, remove: Iterable[Tool] = (), add: Iterable[Tool] = ()) -> None:
        """Remove and add tools in one step: if any of it fails, nothing changes, and readers never see a part of it."""
        with self._lock:
            self._change(remove, add)

    def _change(self, remove: Iterable[Tool], add: Iterable[Tool]) -> None:
        # A dictionary that is part of a snapshot is never changed; one that is not may be.
        tools = dict(self._by_id) if self._snapshot is not None else self._by_id
        undo: dict[str, tuple[Tool, ...] | None] = {}
        try:
            for tool in remove:
                undo.setdefault(tool.id, tools.get(tool.id))
                tools[tool.id] = tuple(t for t in tools.get(tool.id, ()) if t is not tool)
                if not tools[tool.id]:
                    del tools[tool.id]
            for tool in add:
                candidates = tools.get(tool.id, ())
                undo.setdefault(tool.id, candidates or None)
                for other in candidates:
                    if other.source == tool.source:
                        raise DuplicateTool(
                            f"Two tools are called {tool.id!r}: one from {other.origin or other.source}, "
                            f"one from {tool.origin or tool.source}. Rename one of them."
                        )
                tools[tool.id] = tuple(sorted((*candidates, tool), key=lambda t: t.priority)) if candidates else (tool,)
        except BaseException:
            for tool_id, before in undo.items():
                if before is None:
                    tools.pop(tool_id, None)
                else:
                    tools[tool_id] = before
            raise
        if undo:
            self._by_id, self._snapshot = tools, None
            self.version += 1

    # Reading

    def __len__(self) -> int:
        return len(self.snapshot())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.snapshot())

    def __contains__(self, tool_id: object) -> bool:
        return tool_id in self._by_id

    def get(self, tool_id: str) -> Tool | None:
        return self.snapshot().get(tool_id)

    # As the design documents read it, for descriptions of their own.

    async def get_tool(self, tool_id: str) -> ToolSpec | None:
        """Return the spec of a tool that can be called."""
        tool = self.get(tool_id)
        return None if tool is None else tool.spec

    async def get_all_tools(self) -> list[ToolSpec]:
        """Return the specs of all tools that can be called, one for each id."""
        snapshot = self.snapshot()
        return [tool.spec for tool in map(snapshot.get, snapshot.by_id) if tool is not None]

    def candidates(self, tool_id: str) -> tuple[Tool, ...]:
        """Return every tool of this id, best first, disabled ones included."""
        return self._by_id.get(tool_id, ())

    def find(self, name: str, action: str | None = None) -> tuple[Tool, ToolCapability]:
        return self.snapshot().find(name, action)

    def find_tool(self, name: str) -> Tool:
        return self.snapshot().find_tool(name)

    def by_name(self, name: str) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.name == name)

    def by_tag(self, *tags: str) -> list[Tool]:
        """Return the tools that have any of the tags; case does not matter."""
        folded = {tag.casefold() for tag in tags}
        return self.snapshot().select(lambda tool: any(tag.casefold() in folded for tag in tool.spec.tags))

    def by_type(self, tool_type: ToolType) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.tool_type == tool_type)

    def by_category(self, category: ToolCategory | str) -> list[Tool]:
        return self.snapshot().select(lambda tool: tool.spec.category == category)

    def _set_enabled(self, tool_id: str, enabled: bool) -> None:
        with self._lock:
            tools = self._by_id.get(tool_id, ())
            self._change(tools, [replace(tool, spec=replace(tool.spec, enabled=enabled)) for tool in tools])
        if not tools:
            raise ToolNotFound(self.snapshot()._why_not_found(tool_id))


def find_action(tool: Tool, action: str | None) -> ToolCapability:
    """Return the action of a tool with this name, or its only one."""
    capability = tool.spec.capability(action)
    if capability is None and action in tool.spec.unavailable_actions:
        reason = tool.spec.unavailable_actions[action]
        raise ToolNotFound(f"The action {action!r} of {tool.id!r} is unavailable: {reason}.")
    if capability is None:
        problem = f"has no action {action!r}" if action else "has several actions: name the one to call"
        raise ToolNotFound(f"Tool {tool.id!r} {problem}. {tool.spec.describe_actions(action)}")
    return capability


def _find_unavailable(by_id: Mapping[str, tuple[Tool, ...]]) -> dict[Tool, tuple[str, ...]]:
    enabled = [tool for tools in by_id.values() for tool in tools if tool.spec.enabled]
    waiting = {tool: set(tool.spec.dependencies) for tool in enabled if tool.spec.dependencies or tool.needs}
    if not waiting:
        return {}
    dependents: dict[str, list[Tool]] = {}
    for tool, needs in waiting.items():
        for tool_id in needs:
            dependents.setdefault(tool_id, []).append(tool)
    # From tools without dependencies upwards; those in a circular dependency are never reached.
    available = [tool.id for tool in enabled if tool not in waiting]
    while available:
        tool_id = available.pop()
        for tool in dependents.pop(tool_id, ()):
            waiting[tool].discard(tool_id)
            if not waiting[tool] and not tool.needs:
                del waiting[tool]
                available.append(tool.id)
    return {tool: tuple(i for i in tool.spec.dependencies if i in needs) for tool, needs in waiting.items()}


def _first_by_key(pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return a dictionary in which the first value of a key wins."""
    first: dict[str, _T] = {}
    for key, value in pairs:
        first.setdefault(key, value)
    return first
