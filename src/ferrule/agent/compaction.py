"""Keeping a history within what a model can read.

Old tool results go first, since they are long and most of what mattered in them was said afterwards; then whole
turns, each with its calls and their answers, for no API takes one without the other. The system's words, the task and
the last turns stay. What is cut here is only what the model is shown: the run's own history stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ferrule.content import encode_json
from ferrule.describe.tokens import estimate_tokens
from ferrule.messages import Message

KEPT: Final = 0.5
"""Of the window: cutting to less than is needed keeps it from being done every turn, and prompt caches whole."""
SHORTENED: Final = 200
"""Characters left of an old result."""
RECENT: Final = 4
"""Turns that are left whole."""
_LEFT_OUT = re.compile(r"\[(\d{1,9}) earlier turns of this task are left out here\.\]")


class Compaction:
    """The history of one run as its model is shown it."""

    def __init__(self, window_tokens: int) -> None:
        self._window = window_tokens
        self._shown: list[Message] = []
        self._seen = 0
        self._tokens = 0
        self._task = ""

    def view(self, messages: Sequence[Message], task: str) -> list[Message]:
        """What to send of these messages, which only ever grow; the task is always among it."""
        self._task = task
        fresh = list(messages[self._seen :])
        self._seen = len(messages)
        self._shown += fresh
        self._tokens += sum(map(tokens_of, fresh))
        if self._tokens > self._window:
            self._shown = compact(self._shown, int(self._window * KEPT), task)
            self._tokens = sum(map(tokens_of, self._shown))
        return self._shown

    def halve(self) -> bool:
        """Show half of what was shown, since it was too much; False when nothing can be left out any more."""
        before, self._window = self._tokens, self._tokens // 2
        self._shown = compact(self._shown, self._window, self._task)
        self._tokens = sum(map(tokens_of, self._shown))
        return self._tokens < before


def compact(messages: Sequence[Message], budget: int, task: str) -> list[Message]:
    """The messages within a budget, as far as that can be done without cutting the last turn."""
    head, turns = _turns(messages)
    old = max(0, len(turns) - RECENT)
    total = sum(map(tokens_of, messages))
    for turn in turns[:old]:
        if total <= budget:
            break
        for place, message in enumerate(turn):
            if message["role"] == "tool":
                turn[place] = _shortened(message)
                total += tokens_of(turn[place]) - tokens_of(message)
    dropped = 0
    while total > budget and dropped < len(turns) - 1:
        total -= sum(map(tokens_of, turns[dropped]))
        dropped += 1
    if dropped:
        gone = [message for turn in turns[:dropped] for message in turn]
        before = sum(int(said[1]) for m in head if (said := _LEFT_OUT.fullmatch(str(m["content"]))))
        head = [message for message in head if not _LEFT_OUT.fullmatch(str(message["content"]))]
        asked = next((m for m in reversed(gone) if m["role"] == "user" and m["content"] == task), None)
        head = [*head, _left_out(before + dropped), *([asked] if asked is not None else ())]
    return [*head, *(message for turn in turns[dropped:] for message in turn)]


def tokens_of(message: Message) -> int:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else encode_json(content).decode()
    calls = message.get("tool_calls")
    return 4 + estimate_tokens(text) + (estimate_tokens(encode_json(calls).decode()) if calls else 0)


def _turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """What stands before the model's first word, and then turn by turn: its message and all up to its next."""
    head: list[Message] = []
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append([message])
        elif turns:
            turns[-1].append(message)
        else:
            head.append(message)
    return head, turns


def _shortened(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= SHORTENED:
        return message
    return {**message, "content": f"{content[:SHORTENED].rstrip()} … [{len(content) - SHORTENED} characters left out]"}


def _left_out(turns: int) -> Message:
    return {"role": "user", "content": f"[{turns} earlier turns of this task are left out here.]"}
