"""Questions to the user at the terminal: trust in a folder, confirmations, what a tool wants to know."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ferrule.catalog.validation import ToolParameterValidator
from ferrule.catalog.validation.messages import describe_expected
from ferrule.cli.terminal import indent_lines, print_error, read_line
from ferrule.config import FerruleConfig
from ferrule.core.content import as_text
from ferrule.core.elicitation import Elicitation, OnElicit
from ferrule.core.spec import JsonSchema, ToolCapability
from ferrule.folder_trust import (
    REPLACED,
    FolderTrust,
    describe_changes,
    describe_contents,
    describe_items,
    read_folder_trust,
    read_servers,
    trust_folder,
)


def decide_trust(config: FerruleConfig) -> FolderTrust:
    """The record of a project's folder, after asking about what is new in it if there is a terminal."""
    record = read_folder_trust(config.root)
    if not record.is_trusted and not has_terminal():
        return record
    servers = read_servers(config)
    if not record.is_trusted:
        reason = REPLACED if record.was_replaced else "It is not trusted yet."
        question = [f"ferrule: {record.folder}: {reason} Its files decide what is run:"]
        if confirm([*question, *describe_contents(config)], "Do you trust the files of this folder?"):
            return trust_folder(config, servers)
        return record
    unknown = {n: s for n, s in servers.items() if s.trust_digest not in record.servers and not s.disabled}
    if unknown:
        question = [f"ferrule: these servers of {config.engine_config.mcp_file} are new or changed:"]
        question += describe_items(
            "server", [describe_changes(name, server, record) for name, server in unknown.items()]
        )
        if confirm(question, "Start them from now on?"):
            return trust_folder(config, unknown)
    return record


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(lines: Iterable[str], question: str) -> bool:
    """Whether the user says yes; False where there is no terminal to ask at."""
    if not has_terminal():
        return False
    for line in lines:
        print_error(line)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    with _interruptible():
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read that blocks, also inside an event loop that has its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


DECLINE_KEY = "!"
_YES_NO = {"y": True, "yes": True, "n": False, "no": False}


class _AnswerDeclined(Exception):
    """The user declined to answer."""


def terminal_elicitation(hidden: Callable[[], AbstractContextManager[None]]) -> OnElicit:
    """Asks on standard error and reads from standard input; declines when there is no terminal.

    `hidden` removes other output from the terminal while the user types.
    """
    turn = asyncio.Lock()

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            print_error(
                f"ferrule: {question.tool_id!r} asks: {indent_lines(question.message)} "
                "There is no terminal to ask at, so this was declined. Run it in a terminal to answer."
            )
            return None
        async with turn:
            with hidden():
                try:
                    return await _answer_elicitation(question)
                except _AnswerDeclined:
                    return None

    return ask


async def _answer_elicitation(question: Elicitation) -> dict[str, Any]:
    print_error(f"{question.tool_id} asks: {indent_lines(question.message)}")
    if question.url is not None:
        print_error(f"  Open this page: {indent_lines(question.url)}")
        await _read_answer(f"  Press Enter when that is done ({DECLINE_KEY} declines): ")
        return {}
    schema = question.schema or {}
    fields = schema.get("properties") or {}
    print_error(f"  ({DECLINE_KEY} declines; an empty line accepts the value in brackets or skips an optional one)")
    if not fields:
        await _read_answer("  Press Enter to agree: ")
        return {}
    required = schema.get("required", ())
    answers = {name: await _ask_field(name, field, name in required) for name, field in fields.items()}
    return {name: value for name, value in answers.items() if value is not None}


async def _ask_field(name: str, field: JsonSchema, required: bool) -> Any:
    """The value of one field, asked again until it is valid; None for a skipped one."""
    if field.get("description"):
        print_error(f"  {indent_lines(str(field['description']))}")
    choices = _field_choices(field)
    expected = f"one of {', '.join(choices)}" if choices else describe_expected(field, field)
    expected = f"some of {', '.join(choices)}, with commas" if choices and field.get("type") == "array" else expected
    default = field.get("default")
    suffix = f" [{as_text(default)}]" if default is not None else "" if required else " (optional)"
    label = indent_lines(f"{field.get('title') or name}, {expected}{suffix}")
    while True:
        line = await _read_answer(f"  {label}: ")
        if not line and (default is not None or not required):
            return default
        problem, value = _parse_field(name, field, line, choices)
        if problem is None:
            return value
        print_error(f"  {problem}")


def _parse_field(name: str, field: JsonSchema, line: str, choices: dict[str, Any]) -> tuple[str | None, Any]:
    """What is wrong with a line, or the value it stands for."""
    if not line:
        return "A value is required.", None
    values = {label.casefold(): value for label, value in choices.items()}
    value: Any = values.get(line.casefold(), line)
    if field.get("type") == "array":
        value = [values.get(part.strip().casefold(), part.strip()) for part in line.split(",") if part.strip()]
    if field.get("type") == "boolean":
        value = _YES_NO.get(line.casefold(), line)
    parameters = {"type": "object", "properties": {name: field}, "required": [name]}
    capability = ToolCapability(name="answer", description="", parameters=parameters)
    checked = ToolParameterValidator().get_check(capability).check({name: value})
    return (None, checked.validated_params[name]) if checked.is_valid else (str(checked.errors[0]), None)


def _field_choices(field: JsonSchema) -> dict[str, Any]:
    """The values that may be chosen, by their labels."""
    items = field.get("items")
    source = items if field.get("type") == "array" and isinstance(items, dict) else field
    options = [o for o in source.get("oneOf") or source.get("anyOf") or () if isinstance(o, dict) and "const" in o]
    if options:
        return {str(option.get("title") or option["const"]): option["const"] for option in options}
    values = source.get("enum") or ()
    names = source.get("enumNames") or values
    return {str(name): value for name, value in zip(names, values, strict=False)}


async def _read_answer(prompt: str) -> str:
    line = await read_line(prompt)
    if line == DECLINE_KEY:
        raise _AnswerDeclined
    return line
