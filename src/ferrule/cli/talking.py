"""A run at a terminal: what the model writes as it comes, the calls it makes, and the person it may ask."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ferrule.agent import AgentAnswer, AgentState, Approval, ApprovalRequest, Question
from ferrule.agent.events import CallEnded, CallStarted, TextPiece, TurnStarted
from ferrule.cli.terminal import complain, visible
from ferrule.content import as_text
from ferrule.describe.sentences import on_one_line, within
from ferrule.errors import Stopped
from ferrule.orchestrator import OrchestratorResult

_SHOWN = 100
_WHOLE = 10_000
"""Characters of arguments a person is asked about; of more, the middle is left out."""
_TURNING = {code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""What lets a terminal show letters in another order than they are in."""
_YES = ("y", "yes", "是", "好", "ok")
ReadLine = Callable[[str], Awaitable[str]]


class Voice:
    """Prints a run as it happens: its text to standard output, everything else to standard error."""

    def __init__(self, *, quiet: bool = False, stream: bool = True) -> None:
        self._quiet, self._stream = quiet, stream
        self._written = ""
        """What stands on the screen of the model's present text."""

    def __call__(self, event: Any) -> None:
        if isinstance(event, TextPiece) and self._stream:
            self._written += event.text
            _print(visible(event.text) if sys.stdout.isatty() else event.text)
        elif isinstance(event, CallStarted) and not self._quiet:
            self.end_line()
            complain(f"· {event.call.name} {within(as_text(event.call.arguments), _SHOWN)}")
        elif isinstance(event, CallEnded) and not self._quiet:
            mark = "→" if event.step.is_success else "✗"
            complain(f"  {mark} {within(on_one_line(event.step.text), _SHOWN)}")
        elif isinstance(event, TurnStarted):
            self.end_line()
            self._written = ""

    def finish(self, answer: str) -> None:
        """The answer, unless it stands there already."""
        if self._written.strip() != answer.strip() or not self._stream:
            self.end_line()
            print(visible(answer) if sys.stdout.isatty() else answer)
        else:
            self.end_line()

    def end_line(self) -> None:
        if self._written and not self._written.endswith("\n"):
            _print("\n")
            self._written += "\n"


class PersonAtTheTerminal:
    """Answers by typing. Where there is no terminal nobody answers, and the run waits."""

    def __init__(
        self,
        read_line: ReadLine,
        *,
        yes: bool = False,
        hidden: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`hidden` keeps others from writing to the terminal meanwhile."""
        self._read_line, self._yes, self._hidden = read_line, yes, hidden

    async def answer(self, question: Question) -> str | None:
        if not can_ask():
            return None
        with self._hidden():
            return await self._answer(question)

    async def _answer(self, question: Question) -> str | None:
        complain(f"? {question.text}")
        for number, option in enumerate(question.options, 1):
            complain(f"  {number}. {option}")
        try:
            said = await self._read_line("  > ")
        except Stopped:
            return None
        if said.isdecimal() and 1 <= int(said) <= len(question.options):
            return question.options[int(said) - 1]
        return said

    async def approve(self, request: ApprovalRequest) -> Approval | None:
        if self._yes:
            return Approval(allowed=True)
        if not can_ask():
            return None
        with self._hidden():
            return await self._approve(request)

    async def _approve(self, request: ApprovalRequest) -> Approval | None:
        action = "" if request.action in (None, request.tool_id) else f" ({request.action})"
        complain(f"? May {request.tool_id}{action} be called with {_whole(request.arguments)}?")
        if request.reason:
            complain(f"  {request.reason}")
        try:
            said = await self._read_line("  [y]es, or why not: ")
        except Stopped:
            return None
        if said.strip().casefold() in _YES:
            return Approval(allowed=True)
        return Approval(allowed=False, reason="" if said.strip().casefold() in ("", "n", "no", "否") else said)


def _whole(arguments: dict[str, Any]) -> str:
    """What a person is to agree to, so that nothing of it can be hidden from them without a word."""
    text = as_text(arguments).translate(_TURNING)
    if len(text) <= _WHOLE:
        return text
    half = _WHOLE // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters are not shown …] {text[-half:]}"


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        raise asyncio.CancelledError from None  # nobody reads any more: nothing more is to be done


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def say_what_it_waits_for(answer: AgentAnswer | OrchestratorResult) -> None:
    """How to go on with a run that waits."""
    if answer.state is not AgentState.WAITING:
        return
    for number, question in enumerate(answer.questions):
        complain(f"? {question.text}")
        for option in question.options:
            complain(f"  - {option}")
        then = "After that, answer" if number else "Answer"
        complain(f'  {then} with: ferrule ask --resume {answer.run_id} "your answer"')
    for request in answer.approvals:
        complain(f"? May {request.tool_id} be called with {_whole(request.arguments)}?")
        complain(f"  Say so with: ferrule ask --resume {answer.run_id} --approve   (or --deny)")
