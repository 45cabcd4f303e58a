"""Asking the user on behalf of a tool: the time people take is not the tool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.engine.deadline import Deadline
from ferrule.engine.running import RunningCall
from ferrule.executors.mcp.elicitation import Elicitation, OnElicit


def asking(on_elicit: OnElicit, running: Mapping[str, RunningCall]) -> OnElicit:
    """The same, with the clocks of the tool's calls standing still meanwhile.

    A server does not say which of its calls asks; so all of them, and those they were made for, are waited for.
    """

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        deadlines: dict[Deadline, None] = {}
        for call in [c for c in running.values() if c.prepared is not None and c.prepared.tool.id == question.tool_id]:
            step: RunningCall | None = call
            while step is not None:
                if step.deadline is not None:
                    deadlines[step.deadline] = None
                step = step.parent
        for deadline in deadlines:
            deadline.pause()
        try:
            return await on_elicit(question)
        finally:
            for deadline in deadlines:
                deadline.resume()

    return ask
