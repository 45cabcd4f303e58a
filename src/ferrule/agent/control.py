"""The two tools that steer a run: one ends it, one asks the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ferrule.sources import tool_of
from ferrule.spec import Tool

FINISH_TASK: Final = "FINISH_TASK"
ASK_USER: Final = "ASK_USER"
CONTROL: Final = ("finish_task", "ask_user")


async def finish_task(message: str = "") -> dict[str, Any]:
    """End the task when it is done, or when it cannot be done.

    Args:
        message: the answer for the user, or why there is none
    """
    return {"system": FINISH_TASK, "message": message}


async def ask_user(question: str, options: list[str] | None = None) -> dict[str, Any]:
    """Ask the user something you need to know and cannot find out. The task goes on with the answer.

    Args:
        question: what you want to know
        options: answers to choose from, if there are few
    """
    return {"system": ASK_USER, "question": question, "options": options or []}


def control_tools() -> list[Tool]:
    tools = (tool_of(function, tags=["control"], idempotent=True) for function in (finish_task, ask_user))
    return [replace(tool, source="builtin") for tool in tools]
