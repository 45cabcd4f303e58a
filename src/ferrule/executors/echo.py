"""The tool that answers with what it was given: for first steps, tests and checks of the whole way."""

from __future__ import annotations

from typing import Any

from ferrule.call import Invocation


class EchoExecutor:
    """Returns its arguments: `{"message": "hello"}` for `{"message": "hello"}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        return dict(invocation.params)
