"""The tool calls that the agents' models ask for. They are scripted, so that a model call costs almost nothing."""

import time
from itertools import count
from typing import Any, TypeAlias

from benchmarks.tools import ARGUMENTS, FAILING_ARGUMENTS

ModelCall: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a tool and its arguments."""

FINAL_ANSWER = "done"
MAX_CPU_SECONDS = 20.0
"""A run whose model repeats a failing call is stopped after this much CPU time."""


def as_openai_tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool as most models are sent it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class CallScript:
    """Calls of one tool, one after the other, then the final answer."""

    def __init__(self, tool: str = "step") -> None:
        self._tool, self._remaining, self._ids = tool, 0, count(1)

    def start(self, turns: int) -> None:
        self._remaining = turns

    def next_call(self) -> ModelCall | None:
        """The next call; None when it is time for the final answer."""
        if not self._remaining:
            return None
        self._remaining -= 1
        return self._tool, dict(ARGUMENTS)

    def new_id(self) -> str:
        return f"c{next(self._ids)}"


class RunStopped(BaseException):
    """Stops a run that would not end by itself. Not an `Exception`: no framework may handle it as a model error."""


class FailingCallScript:
    """The same failing call, whatever the result of the previous one was."""

    def __init__(self, tool: str, max_model_calls: int) -> None:
        self._tool, self._max_model_calls, self._ids = tool, max_model_calls, count(1)
        self.start()

    def start(self) -> None:
        self.model_calls, self.was_stopped, self._start_time = 0, False, time.process_time()

    def next_call(self) -> ModelCall:
        if self.model_calls >= self._max_model_calls or time.process_time() > self._start_time + MAX_CPU_SECONDS:
            self.was_stopped = True
            raise RunStopped
        self.model_calls += 1
        return self._tool, dict(FAILING_ARGUMENTS)

    def new_id(self) -> str:
        return f"c{next(self._ids)}"
