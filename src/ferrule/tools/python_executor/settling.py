"""What came of a script, as its caller is told: a result, or an error that a model can mend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrule.content import Output
from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, Transient
from ferrule.tools.python_executor.config import PythonExecutorConfig
from ferrule.tools.python_executor.script import Failure, Line, Ran

_MESSAGE: Final = 2_000
_SOURCE: Final = 200
_PRINTED: Final = 1_000
_OUTER: Final = 2
_INNER: Final = 4
"""Lines of a traceback that are told, from its beginning and from its end."""


def settle(
    ran: Ran, config: PythonExecutorConfig, *, hint: str = "", is_transient: bool = False, facts: dict[str, Any]
) -> Output:
    """The result of a script; raises where it failed. `facts` stand beside the result."""
    if ran.failure is not None:
        raise _error(ran.failure, config, _told(ran.failure, config, ran.printed, hint), is_transient, facts)
    printed = {"printed": ran.printed} if ran.printed else {}
    return Output(data={**printed, "result": ran.value, **facts})


def _error(
    failure: Failure, config: PythonExecutorConfig, told: str, is_transient: bool, facts: dict[str, Any]
) -> CallError:
    match failure.how:
        case "timeout":
            return TimedOut(told, timeout=config.seconds, **facts)
        case "broken":
            return ExecutionFailed(told, **facts)
        case _:
            return Transient(told, **facts) if is_transient else Retry(told, **facts)


def _told(failure: Failure, config: PythonExecutorConfig, printed: str, hint: str) -> str:
    said = [_headline(failure, config), *_places(failure.lines)]
    if hint:
        said.append(hint)
    if printed.strip():
        cut = "…" if len(printed) > _PRINTED else ""
        said.append(f"It had printed: {cut}{printed[-_PRINTED:].rstrip()}")
    return "\n".join(said)


def _headline(failure: Failure, config: PythonExecutorConfig) -> str:
    match failure.how:
        case "raised":
            return f"The script failed: {_short(failure.message, _MESSAGE)}"
        case "timeout":
            return f"The script was stopped: it took more than {config.seconds:g} seconds. Let it do less at once."
        case "memory":
            return f"The script was stopped: it used more than {config.memory // 1_000_000} MB. Keep less at once."
        case "printed":
            return f"The script was stopped: it printed more than {config.printed_bytes:,} bytes. Print a summary."
        case "result":
            return f"The script ran, but its result cannot be handed on: {failure.message}"
        case "broken":
            return f"The Python that ran the script broke: {_short(failure.message, _MESSAGE)}"


def _places(lines: Sequence[Line]) -> list[str]:
    shown = list(map(_place, lines))
    if len(shown) <= _OUTER + _INNER + 1:
        return shown
    return [*shown[:_OUTER], f"  … {len(shown) - _OUTER - _INNER} more lines …", *shown[-_INNER:]]


def _place(line: Line) -> str:
    function = f" in {_short(line.function, _SOURCE)}" if line.function else ""
    return f"  line {line.number}{function}: {_short(line.source, _SOURCE)}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
