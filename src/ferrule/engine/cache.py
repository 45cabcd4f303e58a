"""Results of tools that declare themselves cacheable, kept for as long as they said."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ferrule.content import Output, encode_json, plain_json
from ferrule.spec import Tool, ToolCapability


class ResultCache:
    """The newest results by tool, action and arguments. Whoever asks gets a copy of his own."""

    def __init__(self, max_entries: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock = max_entries, clock
        self._entries: OrderedDict[bytes, tuple[float, Any, Output]] = OrderedDict()

    def key(self, tool: Tool, capability: ToolCapability, params: dict[str, Any]) -> bytes | None:
        """What names a result; None for arguments that are not the JSON they would be written as (NaN, say)."""
        if plain_json(params) != params:
            return None
        arguments = encode_json(params, sort_keys=True)
        return b"\0".join((tool.source.encode(), tool.spec.fingerprint.encode(), capability.name.encode(), arguments))

    def get(self, key: bytes, tool: Tool) -> Output | None:
        """The result, if it is fresh and of this very tool: another function may have the same spec."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires, target, output = entry
        if expires < self._clock() or target is not tool.target:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return _copy(output)

    def put(self, key: bytes, tool: Tool, output: Output, ttl: float) -> None:
        self._entries[key] = (self._clock() + ttl, tool.target, _copy(output))
        self._entries.move_to_end(key)
        if len(self._entries) > self._max:
            self._entries.popitem(last=False)


def _copy(output: Output) -> Output:
    return replace(output, data=copy.deepcopy(output.data))
