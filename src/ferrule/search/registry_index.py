"""An index that is always true to a registry."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from ferrule.registry import RegistrySnapshot, ToolRegistry
from ferrule.search.index import Hit, SearchIndex
from ferrule.spec import Tool


class RegistryIndex:
    """Searches the tools of a registry that can be called now.

    Nothing happens when the registry changes; the next search puts right what has changed since the last one. May
    be used by several threads.
    """

    def __init__(self, registry: ToolRegistry) -> None:
        self.registry = registry
        self._index = SearchIndex()
        self._seen: RegistrySnapshot | None = None
        self._lock = threading.Lock()

    def search(self, text: str, limit: int = 10) -> list[Hit]:
        """The tools that fit a text best."""
        with self._lock:
            index, unmet = self._current(), self._unmet()
            if not unmet:
                return index.search(text, limit)
            return [hit for hit in index.search(text, limit + len(unmet)) if hit.tool not in unmet][:limit]

    def search_by_tags(self, tags: Sequence[str]) -> list[Tool]:
        """Tools that have any of the tags, those with most of them first."""
        with self._lock:
            return self._without_unmet(self._current().search_by_tags(tags))

    def search_by_requirements(self, requirements: Sequence[str]) -> list[Tool]:
        """Tools that meet any of the requirements, those that meet most of them first."""
        with self._lock:
            return self._without_unmet(self._current().search_by_requirements(requirements))

    def _unmet(self) -> Collection[Tool]:
        return self._seen.unmet if self._seen is not None else ()

    def _without_unmet(self, tools: list[Tool]) -> list[Tool]:
        unmet = self._unmet()
        return [tool for tool in tools if tool not in unmet] if unmet else tools

    def _current(self) -> SearchIndex:
        if self._seen is None or self._seen.version != self.registry.version:
            now = self.registry.snapshot()
            self._apply(self._seen, now)
            self._seen = now
        return self._index

    def _apply(self, before: RegistrySnapshot | None, now: RegistrySnapshot) -> None:
        # The registry keeps the candidates of an id as one tuple, and the same tuple while they stay the same.
        old = before.by_id if before is not None else {}
        for tool_id in old.keys() - now.by_id.keys():
            for tool in old[tool_id]:
                self._index.remove(tool.id, tool.source)
        for tool_id, tools in now.by_id.items():
            known = old.get(tool_id, ())
            if tools is known:
                continue
            for tool in known:
                if tool not in tools:
                    self._index.remove(tool.id, tool.source)
            for tool in tools:
                if tool not in known:
                    self._index.add(tool)
