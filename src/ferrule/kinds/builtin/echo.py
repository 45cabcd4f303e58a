"""The tool that returns its arguments, for first steps, tests and end-to-end checks."""

from __future__ import annotations

from typing import Any

from ferrule.core.call import Invocation


class EchoExecutor:
    """Returns its arguments: `{"message": "hello"}` for `{"message": "hello"}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        return dict(invocation.params)
