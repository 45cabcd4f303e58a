"""Tools in their places: by category and subcategory, the most important first."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.registry import RegistrySnapshot, ToolRegistry
from ferrule.spec import Tool


class CategoryIndex:
    """The tools of a registry that can be called, by category. Grouped anew when the registry has changed."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._seen: RegistrySnapshot | None = None
        self._tools: dict[str, dict[str, list[Tool]]] = {}

    def tools(self, category: str, subcategory: str | None = None) -> list[Tool]:
        """The tools of a category, or only of a part of it."""
        parts = self._current().get(str(category), {})
        if subcategory is not None:
            return list(parts.get(subcategory, ()))
        return _in_order(tool for tools in parts.values() for tool in tools)

    def tree(self) -> dict[str, dict[str, list[str]]]:
        """The ids of the tools in each part of each category."""
        return {
            category: {part: [tool.id for tool in tools] for part, tools in parts.items()}
            for category, parts in self._current().items()
        }

    def _current(self) -> dict[str, dict[str, list[Tool]]]:
        now = self._registry.snapshot()
        if self._seen is not now:
            self._seen, self._tools = now, _grouped(filter(None, map(now.get, now.by_id)))
        return self._tools


def _grouped(tools: Iterable[Tool]) -> dict[str, dict[str, list[Tool]]]:
    """By the names of categories and their parts, in order."""
    found: dict[str, dict[str, list[Tool]]] = {}
    for tool in _in_order(tools):
        found.setdefault(str(tool.spec.category), {}).setdefault(tool.spec.subcategory, []).append(tool)
    return {category: dict(sorted(parts.items())) for category, parts in sorted(found.items())}


def _in_order(tools: Iterable[Tool]) -> list[Tool]:
    return sorted(tools, key=lambda tool: (-tool.spec.priority, tool.id))
