"""Results of tools that declare themselves cacheable, kept for as long as they said."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ferrule.content import Output, encode_json
from ferrule.spec import Tool, ToolCapability


class ResultCache:
    """The newest results by tool, action and arguments."""

    def __init__(self, max_entries: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock = max_entries, clock
        self._entries: OrderedDict[bytes, tuple[float, Output]] = OrderedDict()

    def key(self, tool: Tool, capability: ToolCapability, params: dict[str, Any]) -> bytes:
        """Changes with the tool: a changed tool starts clean."""
        arguments = encode_json(params, sort_keys=True)
        return b"\0".join((tool.source.encode(), tool.spec.fingerprint.encode(), capability.name.encode(), arguments))

    def get(self, key: bytes) -> Output | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] < self._clock():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: bytes, output: Output, ttl: float) -> None:
        self._entries[key] = (self._clock() + ttl, output)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()
