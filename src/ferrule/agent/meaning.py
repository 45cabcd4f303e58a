"""Which tool a model means by a call, whatever it calls it.

A policy can only speak about what is known. So every way to a tool ends here before anybody is asked for leave: the
name in its schema, the name of its action alone, another name the library knows, and `call_tool`, which is only a
longer way to write a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.agent.toolbox import Offer, Toolbox
from ferrule.hub import ToolHub
from ferrule.messages import ToolCall
from ferrule.models.arguments import read_call
from ferrule.spec import Tool, ToolCapability

CALL_TOOL: Final = "call_tool"
_NO_NAME: Final = "call_tool needs `name`, the name of a tool as search_tools gave it, and `arguments`, an object."


@dataclass(frozen=True, slots=True)
class Meant:
    """A call, and what it is a call of."""

    call: ToolCall
    """As it is made: that of the tool itself."""
    found: tuple[Tool, ToolCapability] | None = None
    """None when there is no such tool."""
    candidates: Sequence[tuple[Tool, ToolCapability]] = ()
    """All that may be called for it, one after the other."""

    @property
    def tool_id(self) -> str:
        return self.call.name if self.found is None else self.found[0].id

    @property
    def action(self) -> str | None:
        return None if self.found is None else self.found[1].name


class Meaning:
    """Tells what the calls of a model mean."""

    def __init__(self, hub: ToolHub, toolbox: Toolbox) -> None:
        self._hub, self._toolbox = hub, toolbox
        self._last: tuple[ToolCall, Offer, Meant] | None = None

    def of(self, call: ToolCall, offer: Offer) -> Meant:
        last = self._last  # the same call is asked about more than once on its way
        if last is not None and last[0] is call and last[1] is offer:
            return last[2]
        meant = self._find(_unwrapped(call), offer)
        # What is not there may be listed the next moment.
        self._last = (call, offer, meant) if meant.found is not None else None
        return meant

    def _find(self, call: ToolCall, offer: Offer) -> Meant:
        if call.error is not None:
            return Meant(call)
        found = offer.actions.get(call.name)
        own = self._toolbox.own(call.name)
        if own is not None:
            found = found or (own, own.spec.capabilities[0])
            return Meant(call, found, (found,))
        name, action = (call.name, None) if found is None else (found[0].id, found[1].name)
        candidates = [(one.tool, one.capability) for one in self._hub.find_by_name(name, action)]
        if found is not None or not candidates:
            return Meant(call, found, candidates)
        names = dict.fromkeys(tool.spec.model_name(capability) for tool, capability in candidates)
        if len(names) > 1:
            return Meant(replace(call, error=f"{call.name!r} may mean {' or '.join(names)}: write which."))
        return Meant(call, candidates[0], candidates)

    def shown(self, call: ToolCall, offer: Offer) -> ToolCall:
        """The call as it may be written down: without what its tool declares to be secret."""
        meant = self.of(call, offer)
        if meant.found is None or not meant.found[1].secret_names:
            return call
        hidden = self._hub.engine.shown_params(meant.tool_id, meant.call.arguments, meant.action)
        return replace(call, arguments=_rewrapped(call, hidden))


def _unwrapped(call: ToolCall) -> ToolCall:
    """The call that `call_tool` is to make; it is made instead."""
    while call.name == CALL_TOOL and call.error is None:
        name = call.arguments.get("name")
        if not isinstance(name, str) or not name:
            return replace(call, error=_NO_NAME)
        call = read_call(name, call.arguments.get("arguments") or {}, id=call.id)
    return call


def _rewrapped(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    if call.name != CALL_TOOL:
        return arguments
    inner = read_call(str(call.arguments["name"]), call.arguments.get("arguments") or {})
    return {**call.arguments, "arguments": _rewrapped(inner, arguments)}
