"""The tools of one moment, put in order and into schemas once, however often they are asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ferrule.describe.schemas import NamedAction, actions_by_name, anthropic_schema, mcp_schema, openai_schema
from ferrule.names import model_name
from ferrule.registry import RegistrySnapshot
from ferrule.spec import Tool


class Listing:
    """What there is to say about a snapshot of the registry."""

    def __init__(self, snapshot: RegistrySnapshot) -> None:
        self._snapshot = snapshot

    @property
    def version(self) -> int:
        return self._snapshot.version

    @cached_property
    def tools(self) -> list[Tool]:
        """The tool that is called by each id, in the order of the names models know."""
        called = (self._snapshot.get(tool_id) for tool_id in self._snapshot.by_id)
        return sorted(filter(None, called), key=lambda tool: model_name(tool.id))

    @cached_property
    def openai(self) -> list[dict[str, Any]]:
        return [openai_schema(action) for action in self._actions]

    @cached_property
    def anthropic(self) -> list[dict[str, Any]]:
        return [anthropic_schema(action) for action in self._actions]

    @cached_property
    def mcp(self) -> list[dict[str, Any]]:
        return [mcp_schema(action) for action in self._actions]

    @cached_property
    def _actions(self) -> list[NamedAction]:
        return actions_by_name(self.tools)
