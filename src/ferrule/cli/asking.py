"""Asking the person at the terminal what an MCP server wants to know in the middle of a call."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from ferrule.cli.terminal import complain, visible
from ferrule.content import as_text
from ferrule.errors import Stopped
from ferrule.executors.mcp.elicitation import Elicitation, OnElicit
from ferrule.spec import JsonSchema, ToolCapability
from ferrule.validation import ToolParameterValidator
from ferrule.validation.messages import expected_text

DECLINES = "!"
_TRUTHS = {"y": True, "yes": True, "n": False, "no": False}


class _Declined(Exception):
    """The person said no."""


def ask_at_the_terminal(quiet: Callable[[], AbstractContextManager[None]]) -> OnElicit:
    """Asks on standard error and reads from standard input; declines where there is no terminal.

    `quiet` keeps others from writing there meanwhile.
    """
    turn = asyncio.Lock()

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            complain(
                f"ferrule: {question.tool_id!r} asks: {question.message} "
                "Nobody can be asked here, so this was declined. Call it at a terminal to answer."
            )
            return None
        async with turn:
            with quiet():
                try:
                    return await _answer(question)
                except _Declined:
                    return None

    return ask


async def _answer(question: Elicitation) -> dict[str, Any]:
    complain(f"{question.tool_id} asks: {question.message}")
    if question.url is not None:
        complain(f"  Open this page: {question.url}")
        await _line(f"  Press Enter when that is done ({DECLINES} declines): ")
        return {}
    schema = question.schema or {}
    fields = schema.get("properties") or {}
    complain(f"  ({DECLINES} declines; an empty line takes what is in brackets, or skips what is optional)")
    if not fields:
        await _line("  Press Enter to agree: ")
        return {}
    answers = {name: await _field(name, said, name in schema.get("required", ())) for name, said in fields.items()}
    return {name: value for name, value in answers.items() if value is not None}


async def _field(name: str, said: JsonSchema, required: bool) -> Any:
    """The value of one field, asked for until it is right; None for one that was skipped."""
    if said.get("description"):
        complain(f"  {said['description']}")
    choices = _choices(said)
    wanted = f"one of {', '.join(choices)}" if choices else expected_text(said, said)
    wanted = f"some of {', '.join(choices)}, with commas" if choices and said.get("type") == "array" else wanted
    default = said.get("default")
    shown = f" [{as_text(default)}]" if default is not None else "" if required else " (optional)"
    while True:
        line = await _line(f"  {said.get('title') or name}, {wanted}{shown}: ")
        if not line and (default is not None or not required):
            return default
        problem, value = _read(name, said, line, choices)
        if problem is None:
            return value
        complain(f"  {problem}")


def _read(name: str, said: JsonSchema, line: str, choices: dict[str, Any]) -> tuple[str | None, Any]:
    """What is wrong with a line, and the value it stands for."""
    if not line:
        return "Something must be said here.", None
    known = {label.casefold(): value for label, value in choices.items()}
    value: Any = known.get(line.casefold(), line)
    if said.get("type") == "array":
        value = [known.get(part.strip().casefold(), part.strip()) for part in line.split(",") if part.strip()]
    if said.get("type") == "boolean":
        value = _TRUTHS.get(line.casefold(), line)
    parameters = {"type": "object", "properties": {name: said}, "required": [name]}
    capability = ToolCapability(name="answer", description="", parameters=parameters)
    checked = ToolParameterValidator().check_of(capability).check({name: value})
    return (None, checked.validated_params[name]) if checked.is_valid else (str(checked.errors[0]), None)


def _choices(said: JsonSchema) -> dict[str, Any]:
    """What may be chosen, by what the person reads."""
    items = said.get("items")
    where = items if said.get("type") == "array" and isinstance(items, dict) else said
    options = [o for o in where.get("oneOf") or where.get("anyOf") or () if isinstance(o, dict) and "const" in o]
    if options:
        return {str(option.get("title") or option["const"]): option["const"] for option in options}
    values = where.get("enum") or ()
    names = where.get("enumNames") or values
    return {str(name): value for name, value in zip(names, values, strict=False)}


async def _line(prompt: str) -> str:
    line = await read_line(prompt)
    if line == DECLINES:
        raise _Declined
    return line


async def read_line(prompt: str) -> str:
    """One line that the person types. It can be waited for beside other things, and given up."""
    # One at a time: of two who wait for the same input, only one would be woken.
    async with _reading.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await _typed(prompt)


_reading: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _typed(prompt: str) -> str:
    print(visible(prompt), end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), readable.set)
    try:
        await readable.wait()
        typed = os.read(sys.stdin.fileno(), 65536)  # a terminal gives a line at a time
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not typed:
        complain("")
        raise Stopped("The question was not answered.")
    return typed.decode("utf-8", "replace").strip()
