"""Reading from and writing to the terminal: lines, questions of tools, progress."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallCancelled

if TYPE_CHECKING:
    # These take longer to import than all of this module, which `ferrule --help` needs too.
    from ferrule.core.call import Progress
    from ferrule.core.elicitation import Elicitation, OnElicit
    from ferrule.core.spec import JsonSchema

# A terminal obeys control characters, so text from tools and models is printed without them.

_ESCAPE_SEQUENCE = lazy_pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]"
)
"""Escape sequences that set colours, titles and positions, as servers write them into their logs."""
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_DISGUISES = (0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF)
"""Characters that show text in another order, on another line, or not at all."""
_HIDDEN_LETTERS = range(0xE0000, 0xE0080)
_VISIBLE_SYMBOLS: dict[int, int | str] = {
    **_CONTROL_PICTURES,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **{code: f"\\u{code:04x}" for code in _DISGUISES},
    **{code: f"\\U{code:08x}" for code in _HIDDEN_LETTERS},
}


def show_control_characters(text: str) -> str:
    """Return the text with a visible symbol for each control character except line ends and tabs.

    Nothing can be disguised: characters that show text in another order or not at all are written as escapes.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE_SYMBOLS)


def indent_lines(text: str) -> str:
    """Indent foreign text, so that none of its lines can be taken for a line of a command."""
    return "\n    ".join(text.splitlines())


_IMITATION = lazy_pattern(r"^(?=(?:\x1b\[[0-9;]*m)*ferrule:)", re.MULTILINE | re.IGNORECASE)


def indent_imitations(text: str) -> str:
    """Indent the lines of an output that look like messages of Ferrule."""
    return _IMITATION.sub("    ", text)


def remove_escape_sequences(text: str) -> str:
    return show_control_characters(_ESCAPE_SEQUENCE.sub("", text))


class PlainFormatter(logging.Formatter):
    """Log lines without control sequences: they may contain output of servers and tools."""

    def format(self, record: logging.LogRecord) -> str:
        return remove_escape_sequences("\n".join(_indent_continuation(super().format(record))))


_LOG_FIELDS = lazy_pattern(r"(?P<fields>\w+=<.*>) \| (?P<message>.*)", re.DOTALL)
_LOG_FIELD = lazy_pattern(r"(\w+)=<(.*?)>(?=, \w+=<|\Z)", re.DOTALL)


class WarningFormatter(PlainFormatter):
    """Warnings as sentences: what happened, then what it is about, without the notation of log fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        match = _LOG_FIELDS.fullmatch(line)
        if match is None:
            return f"ferrule: {line}"
        fields = dict(_LOG_FIELD.findall(match["fields"]))
        error = fields.pop("error", "").rstrip(".")
        about = ", ".join(f"{name} {value}" for name, value in fields.items())
        return f"ferrule: {f'{error}: ' if error else ''}{match['message']} ({about})"


def echo(text: object) -> None:
    """Print a text to standard output.

    On a terminal, control characters are made visible, and no line looks like a message of Ferrule.
    """
    print(indent_imitations(show_control_characters(str(text))) if sys.stdout.isatty() else text)


def print_error(message: object) -> None:
    """Print a message to standard error.

    Lines after the first one are indented: foreign text inside the message cannot look like a message.
    """
    text = "\n".join(_indent_continuation(str(message)))
    print(show_control_characters(text) if sys.stderr.isatty() else text, file=sys.stderr)


def _indent_continuation(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield line if number == 0 or line[:1].isspace() else f"    {line}"


EXIT_CLOSED_PIPE = 141
"""What a shell reports for `cat` and `git` when the reader of their output is gone: 128 and the number of SIGPIPE."""


def exit_without_output(error: OSError) -> NoReturn:
    """End because standard output cannot be written: silently if its reader is gone, else with the reason."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python prints an error at exit
    if isinstance(error, BrokenPipeError):
        raise SystemExit(EXIT_CLOSED_PIPE)
    print_error(f"ferrule: The output cannot be written: {error.strerror}.")
    raise SystemExit(1)


async def read_line(prompt: str) -> str:
    """Read one line that the user types. Waiting for the line can be cancelled."""
    # One reader at a time: if two waited for the same input, only one would be woken.
    async with _reader_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await _read_line_once(prompt)


_reader_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _read_line_once(prompt: str) -> str:
    print(show_control_characters(prompt), end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), readable.set)
    try:
        await readable.wait()
        data = os.read(sys.stdin.fileno(), 65536)  # a terminal delivers one line per read
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not data:
        print_error("")
        raise CallCancelled("The question was not answered.")
    return data.decode("utf-8", "replace").strip()


# ---- progress of a long call


class ProgressLine:
    """A line that shows that a long call is running; nothing when standard error is not a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._status: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> ProgressLine:
        if self._enabled:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.update("running …")
            self._start_soon()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()
        self._status = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line while something else uses the terminal."""
        self._stop()
        yield
        self._start_soon()

    def _start_soon(self) -> None:
        if self._status is not None:  # most calls end before a person could read anything
            self._timer = asyncio.get_running_loop().call_later(0.5, self._status.start)

    def _stop(self) -> None:
        if self._status is not None and self._timer is not None:
            self._timer.cancel()
            self._status.stop()

    def progress(self, progress: Progress) -> None:
        if self._status is None:
            return
        share = "" if progress.fraction is None else f"{progress.fraction:4.0%} "
        words = progress.message or (str(progress.data) if progress.data is not None else "")
        from rich.text import Text

        self._status.update(Text(show_control_characters(f"{share}{words}".strip() or "running …")))


# ---- questions to the user


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(lines: Iterable[str], question: str) -> bool:
    """Ask for a yes. Returns False without a terminal."""
    if not has_terminal():
        return False
    for line in lines:
        print_error(line)
    # Ctrl-C ends the read also inside an event loop, which has its own handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)


DECLINE_KEY = "!"
_YES_NO = {"y": True, "yes": True, "n": False, "no": False}


class _AnswerDeclined(Exception):
    """The user declined to answer."""


def terminal_elicitation(hidden: Callable[[], AbstractContextManager[None]]) -> OnElicit:
    """Make a handler that asks on standard error and reads from standard input; it declines without a terminal.

    `hidden` removes other output from the terminal while the user types.
    """
    turn = asyncio.Lock()

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        if not has_terminal():
            print_error(
                f"ferrule: {question.tool_id!r} asks: {indent_lines(question.message)} "
                "There is no terminal to ask in, so the question was declined. Run it in a terminal to answer."
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
    """Ask for the value of one field until the value is valid; None for a skipped one."""
    from ferrule.catalog.validation.validator import describe_expected
    from ferrule.core.content import as_text

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
    """Return what is wrong with a line, or the value that the line stands for."""
    from ferrule.catalog.validation import ToolParameterValidator
    from ferrule.core.spec import ToolCapability

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
    """Return the values that may be chosen, by their labels."""
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
