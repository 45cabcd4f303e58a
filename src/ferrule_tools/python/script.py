"""A script and its outcome: what is to run, its value as plain JSON, and the result or error of the call."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.core.content import Output, number_to_json
from ferrule.errors import ExecutionFailed, Retry, TimedOut, Transient
from ferrule.texts.shorten import cut
from ferrule_tools._tool_setup import require_positive

INSTALL_BUBBLEWRAP: Final = "apt install bubblewrap, dnf install bubblewrap or apk add bubblewrap"
_SANDBOX_MEMORY_MB: Final = 256
_FULL_MEMORY_MB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonExecutorConfig:
    """Where scripts run, which tools they may call, and how much they may use."""

    full: bool = False
    """Run scripts in a real CPython in a process of its own instead of the sandbox. They cannot call tools then."""
    interpreter: str = ""
    """With `full`: the Python to run; empty: the one that Ferrule runs on."""
    tools: list[str] | None = None
    """The tools that scripts may call, by id, name or pattern (`files__*`); left out: all read-only tools."""
    calls: int = 100
    """How many tool calls one script may make."""
    seconds: float = 20.0
    """Seconds a script may compute; waiting for tools does not count. With `full`: seconds it may run."""
    timeout: float = 300.0
    """Seconds the whole call may take, including the tools that the script calls."""
    memory_mb: int | None = None
    """Megabytes a script may use; left out: 256, with `full` 1024."""
    printed_bytes: int = 100_000
    """Bytes a script may print."""
    processes: int = 32
    """With `full`: processes and threads that a script may have."""
    files_mb: int = 64
    """With `full`: megabytes a script may write, in all files together."""

    def __post_init__(self) -> None:
        names = ("calls", "seconds", "timeout", "memory", "printed_bytes", "processes", "files_mb")
        require_positive(**{name: getattr(self, name) for name in names})

    @property
    def memory(self) -> int:
        """Return the limit in bytes."""
        default = _FULL_MEMORY_MB if self.full else _SANDBOX_MEMORY_MB
        return (default if self.memory_mb is None else self.memory_mb) * 1_000_000


# Scripts

MAX_CODE: Final = 200_000
"""Characters of a script."""
MAX_JSON_BYTES: Final = 1_000_000
"""Approximate size that a value may have as JSON."""
MAX_JSON_DEPTH: Final = 100

_MAX_MESSAGE: Final = 2_000
_MAX_SOURCE: Final = 200
_MAX_PRINTED: Final = 1_000
_OUTER_LINES: Final = 2
_INNER_LINES: Final = 4
"""Lines of a traceback that are shown, from its beginning and from its end."""

FailureKind: TypeAlias = Literal["raised", "timeout", "memory", "printed", "result", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    code: str
    inputs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.code.strip():
            raise Retry("`code` is empty: write the Python to run.")
        if len(self.code) > MAX_CODE:
            raise Retry(f"`code` has {len(self.code):,} characters, more than {MAX_CODE:,}: pass data in `inputs`.")
        for name in self.inputs:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise Retry(f"`inputs` has {name[:60]!r}, which is not a variable name: use one like order_ids.")


class TracebackLine(NamedTuple):
    """A line of the script in which it failed. `function` is empty outside of functions."""

    number: int
    function: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFailure:
    """Why a script did not finish."""

    kind: FailureKind
    message: str
    """As Python writes it: `ZeroDivisionError: division by zero`; or a sentence of ours."""
    lines: Sequence[TracebackLine] = ()
    """From the outermost to the innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    value: Any = None
    """Of its last expression, as plain JSON."""
    printed: str = ""
    failure: ScriptFailure | None = None


# The result of the call


def tool_output(
    result: ScriptResult,
    config: PythonExecutorConfig,
    *,
    hint: str = "",
    is_transient: bool = False,
    details: dict[str, Any] | None = None,
) -> Output:
    """Return the tool's output, with `details` beside the result. Raises the error of the call if the script failed."""
    details = details or {}
    if result.failure is None:
        printed = {"printed": result.printed} if result.printed else {}
        return Output(data={**printed, "result": result.value, **details})
    lines = [_headline(result.failure, config), *_format_traceback(result.failure.lines)]
    if hint:
        lines.append(hint)
    if text := result.printed.rstrip():
        mark = "…" if len(text) > _MAX_PRINTED else ""
        lines.append(f"It had printed: {mark}{text[-_MAX_PRINTED:]}")
    message = "\n".join(lines)
    if result.failure.kind == "timeout":
        raise TimedOut(message, timeout=config.seconds, **details)
    kind = ExecutionFailed if result.failure.kind == "broken" else Transient if is_transient else Retry
    raise kind(message, **details)


def _headline(failure: ScriptFailure, config: PythonExecutorConfig) -> str:
    match failure.kind:
        case "raised":
            return f"The script failed: {cut(failure.message, _MAX_MESSAGE)}"
        case "timeout":
            return f"The script was stopped: it took more than {config.seconds:g} seconds. Do less in one script."
        case "memory":
            return f"The script was stopped: it used more than {config.memory // 1_000_000} MB. Keep less in memory."
        case "printed":
            return f"The script was stopped: it printed more than {config.printed_bytes:,} bytes. Print a summary."
        case "result":
            return f"The script ran, but its result cannot be returned: {failure.message}"
        case "broken":
            return f"The Python that ran the script broke: {cut(failure.message, _MAX_MESSAGE)}"


def _format_traceback(lines: Sequence[TracebackLine]) -> list[str]:
    texts = []
    for number, function, source in lines:
        where = f" in {cut(function, _MAX_SOURCE)}" if function else ""
        texts.append(f"  line {number}{where}: {cut(source, _MAX_SOURCE)}")
    if len(texts) <= _OUTER_LINES + _INNER_LINES + 1:
        return texts
    omitted = len(texts) - _OUTER_LINES - _INNER_LINES
    return [*texts[:_OUTER_LINES], f"  … {omitted} more lines …", *texts[-_INNER_LINES:]]


# Values as plain JSON

_MAX_INTEGER_BITS: Final = 13_000
"""Python refuses to write longer ones as decimal text."""
_MAX_DECIMAL_BYTES: Final = 4_000
"""Writing a longer one takes seconds, even if only its beginning is used."""
_CONTAINER_COST: Final = 10
"""Bytes counted for a list or a dictionary itself, so that the number of empty ones is limited too."""
_MAX_TEXT: Final = 1_000
_STR_TYPES: Final = (Decimal, Fraction, timedelta, complex, PurePath, BaseException, type)


def to_plain_json(value: Any, *, what: str) -> Any:
    """Convert a value to plain JSON. Raises Retry if the value is too large; `what` names it in the message."""
    return _JsonConverter(what).convert(value, MAX_JSON_DEPTH)


class _JsonConverter:
    """Converts a value that a sandboxed script built, and counts its size on the way.

    A few lists that contain each other many times over are small in the sandbox and endless when written out.
    """

    def __init__(self, what: str) -> None:
        self._what, self._remaining = what, MAX_JSON_BYTES

    def convert(self, value: Any, depth: int) -> Any:
        if depth == 0:
            raise Retry(f"{self._what} is nested more than {MAX_JSON_DEPTH} deep: make it flatter.")
        match value:
            case None | bool():
                self._count(5)
                return value
            case int():
                bits = value.bit_length()
                if bits > _MAX_INTEGER_BITS:
                    self._count(40)
                    return f"an integer of {bits:,} bits"
                self._count(bits // 3)
                return int(value)
            case float():
                self._count(20)
                return value if math.isfinite(value) else repr(value)
            case str():
                self._count(len(value))
                return value
            case dict():
                return self._mapping(value, depth)
            case list() | tuple():
                return self._items(value, depth)
            case set() | frozenset():
                self._count(len(value))
                return self._items(sorted(value, key=_sort_key), depth)
            case _:
                return self._other(value, depth)

    def _count(self, size: int) -> None:
        self._remaining -= size + 2
        if self._remaining < 0:
            raise Retry(f"{self._what} is larger than {MAX_JSON_BYTES:,} bytes: use a part or a summary of it.")

    def _mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._count(_CONTAINER_COST)
        converted = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else str(self.convert(key, depth - 1))
            self._count(len(name))
            converted[name] = self.convert(item, depth - 1)
        return converted

    def _items(self, value: Iterable[Any], depth: int) -> list[Any]:
        self._count(_CONTAINER_COST)
        return [self.convert(item, depth - 1) for item in value]

    def _other(self, value: Any, depth: int) -> Any:
        """Convert dates, decimals, bytes, paths, and instances of a script's own classes."""
        attributes = getattr(value, "attributes", None)  # Monty's stand-in for an instance has them
        if isinstance(attributes, dict):
            return self._mapping(attributes, depth)
        if isinstance(value, bytes):
            self._count(4 * len(value))
            return repr(value)
        if isinstance(value, (date, time)):
            text = value.isoformat()
        elif isinstance(value, Decimal) and value.__sizeof__() > _MAX_DECIMAL_BYTES:
            text = f"a decimal of {value.__sizeof__():,} bytes"
        elif isinstance(value, (Decimal, Fraction)) and not isinstance(number := number_to_json(value), str):
            self._count(20)
            return number
        elif isinstance(value, _STR_TYPES):
            text = str(value)[:_MAX_TEXT]
        else:  # not its repr, which may be endless
            text = f"<{type(value).__name__} {getattr(value, 'name', '')}".rstrip() + ">"
        self._count(len(text))
        return text


def _sort_key(item: Any) -> tuple[str, Any]:
    """Sort numbers by size, texts alphabetically, everything else by type."""
    if isinstance(item, int) or (isinstance(item, float) and math.isfinite(item)):
        return "", item
    return type(item).__name__, item if isinstance(item, str) else ""
