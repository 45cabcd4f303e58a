"""Words about the tools of a registry: in full, as schemas, or within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.content import copy_json
from ferrule.describe.listing import Listing
from ferrule.describe.page import SEPARATOR, Page
from ferrule.describe.text import examples_of, full_text, one_line
from ferrule.describe.tokens import estimate_tokens
from ferrule.describe.wording import wording_of
from ferrule.registry import ToolRegistry
from ferrule.search import RegistryIndex
from ferrule.spec import Tool

_MOST_OTHERS = 10


class DescriptionEngine:
    """Tells models which tools there are. Tools come in the same order every time, by the names models know.

    Schemas are made once and copied for each who asks, who may do with them what they like.
    """

    def __init__(self, registry: ToolRegistry, index: RegistryIndex | None = None, *, language: str = "en") -> None:
        self._registry = registry
        self._index = index or RegistryIndex(registry)
        self._words = wording_of(language)
        self._listed: Listing | None = None

    # In plain words

    async def generate_tool_description_for_agent(self, tool_id: str) -> str:
        """Everything an agent needs to know about a tool."""
        return self._full(self._registry.find_tool(tool_id))

    async def generate_all_tools_description_for_agent(self) -> str:
        """The same for all tools. For more than a few dozens, see `describe_within`."""
        return SEPARATOR.join(map(self._full, self._listing().tools))

    async def get_tool_usage_examples(self, tool_id: str) -> list[dict[str, Any]]:
        """Calls like `{"tool_id": …, "action": …, "parameters": …}`, as its author gave them or made to fit."""
        spec = self._registry.find_tool(tool_id).spec
        return [
            {"tool_id": spec.tool_id, "action": capability.name, "parameters": example}
            for capability in spec.capabilities
            for example in examples_of(capability)
        ]

    def describe_within(self, budget_tokens: int, core: Sequence[str] = (), query: str | None = None) -> str:
        """All tools in full if the budget allows; otherwise the core ones, ten others, and how many more there are.

        The core ones are in full whatever that costs. With a query the others are those that fit it best, in full
        where there is room; without one they are the first by name, one line each.
        """
        tools = self._listing().tools
        everything = self._all_in_full(tools, budget_tokens)
        if everything is not None:
            return everything
        page = Page(budget_tokens, self._words)
        first = list(dict.fromkeys(self._registry.find_tool(name) for name in core))
        for tool in first:
            page.add(self._full(tool))
        relevant = self._relevant(query) if query else []
        others = [tool for tool in relevant or tools if tool not in first]
        for tool in others[:_MOST_OTHERS]:
            in_full = bool(relevant) and page.add_if_it_fits(self._full(tool))
            if not in_full and not page.mention_if_it_fits(one_line(tool.spec, self._words)):
                break
        return page.text(of_tools=len(tools))

    # As schemas

    def openai_schemas(self) -> list[dict[str, Any]]:
        """Every action as OpenAI's API and those like it take it."""
        return [copy_json(schema) for schema in self._listing().openai]

    def anthropic_schemas(self) -> list[dict[str, Any]]:
        """Every action as Anthropic's API takes it."""
        return [copy_json(schema) for schema in self._listing().anthropic]

    def mcp_schemas(self) -> list[dict[str, Any]]:
        """Every action as an MCP server lists it."""
        return [copy_json(schema) for schema in self._listing().mcp]

    def _listing(self) -> Listing:
        if self._listed is None or self._listed.version != self._registry.version:
            self._listed = Listing(self._registry.snapshot())
        return self._listed

    def _full(self, tool: Tool) -> str:
        return full_text(tool.spec, self._words)

    def _all_in_full(self, tools: list[Tool], budget_tokens: int) -> str | None:
        texts: list[str] = []
        left = budget_tokens
        for tool in tools:
            texts.append(self._full(tool))
            left -= estimate_tokens(texts[-1] + SEPARATOR)
            if left < 0:
                return None
        return SEPARATOR.join(texts)

    def _relevant(self, query: str) -> list[Tool]:
        # Twice as many as are shown: some may be core tools, some may not be the first candidate of their id.
        hits = self._index.search(query, 2 * _MOST_OTHERS)
        return [hit.tool for hit in hits if self._registry.get(hit.tool.id) is hit.tool]
