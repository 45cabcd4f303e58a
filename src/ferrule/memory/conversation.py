"""What was asked and answered in a conversation, and what of it was so at a moment.

A conversation is a book in the store: a note when a question arrives, another when it has its answer, under keys that
grow with time and are never written twice. So the state of a moment is all notes with smaller keys: a snapshot is no
copy but a mark, and what comes later, also from questions asked at the same time, cannot get into it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ferrule.store import ToolKnowledgeStore

CONVERSATIONS: Final = "conversation:"
RUNS: Final = "asked:"
DEFAULT: Final = "default"
"""The conversation of those who name none."""
KEPT: Final = 80
"""Of a longer conversation the oldest turns are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and what came of it."""

    question: str
    answer: str = ""
    state: str = "running"
    """`finished`, `waiting`, `stopped`; `failed` or `cancelled` if it came to nothing; `running` until then."""
    is_question: bool = True
    """Greetings, and questions after questions, are none."""
    run_id: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """A conversation as it was at a moment."""

    conversation_id: str
    moment: str
    _store: ToolKnowledgeStore

    async def turns(self) -> tuple[Turn, ...]:
        """The turns until then, the oldest first; one that had no answer yet has none here for ever."""
        notes = await self._store.notes(CONVERSATIONS + self.conversation_id)
        await self._forget_oldest(notes)
        asked: dict[str, Mapping[str, Any]] = {}
        answered: dict[str, Mapping[str, Any]] = {}
        for key, said in notes.items():
            if key >= self.moment:
                break
            if said["kind"] == "question":
                asked[key] = said
            else:
                answered[said["turn"]] = said
        return tuple(_turn(said, answered.get(key)) for key, said in asked.items())

    async def questions(self) -> list[str]:
        return [turn.question for turn in await self.turns() if turn.is_question]

    async def _forget_oldest(self, notes: Mapping[str, Any]) -> None:
        if len(notes) > 3 * KEPT:
            # Small talk goes before questions do, however new it is; but not that of this very moment.
            real = {key for key, said in notes.items() if said["kind"] == "question" and said["is_question"]}
            idle = {key for key in list(notes)[:-KEPT] if notes[key].get("turn", key) not in real}
            left = [key for key in notes if key not in idle]
            await self._store.forget_notes(CONVERSATIONS + self.conversation_id, [*idle, *left[: -2 * KEPT]])


class ConversationMemory:
    """Writes conversations down."""

    def __init__(self, store: ToolKnowledgeStore) -> None:
        self._store = store
        self._last = 0
        self._writer = os.urandom(3).hex()
        """So that two processes never write under one key."""

    def create_snapshot(self, conversation_id: str = DEFAULT) -> HistorySnapshot:
        """The conversation as it is now."""
        return HistorySnapshot(conversation_id=conversation_id, moment=self._moment(), _store=self._store)

    def ask(self, conversation_id: str, question: str, *, is_question: bool = True) -> str:
        """Write down what was said; returns the key of its turn."""
        said = {"text": question, "is_question": is_question, "at": time.time()}
        return self._write(conversation_id, "question", said)

    def answer(self, conversation_id: str, turn: str, text: str, *, state: str, run_id: str = "") -> None:
        """Write down what came of a question; said again, it takes the place of what was said before."""
        self._write(conversation_id, "answer", {"turn": turn, "text": text, "state": state, "run_id": run_id})

    def bind(self, run_id: str, snapshot: HistorySnapshot, turn: str, **facts: Any) -> None:
        """Let a run see the snapshot, whoever goes on with it and whenever."""
        said = {"conversation_id": snapshot.conversation_id, "moment": snapshot.moment, "turn": turn, **facts}
        self._store.note(RUNS + run_id, "begin", said)

    async def bound_to(self, run_id: str) -> Mapping[str, Any] | None:
        """What was said when the run began; None if it is no run of ours."""
        return (await self._store.notes(RUNS + run_id)).get("begin")

    async def snapshot_of(self, run_id: str) -> HistorySnapshot | None:
        """What a run may know of the conversation it is part of."""
        bound = await self.bound_to(run_id)
        if bound is None:
            return None
        return HistorySnapshot(conversation_id=bound["conversation_id"], moment=bound["moment"], _store=self._store)

    def _write(self, conversation_id: str, kind: str, said: dict[str, Any]) -> str:
        key = self._moment()
        self._store.note(CONVERSATIONS + conversation_id, key, {"kind": kind, **said})
        return key

    def _moment(self) -> str:
        self._last = max(time.time_ns(), self._last + 1)
        return f"{self._last:020}-{self._writer}"


def _turn(asked: Mapping[str, Any], answered: Mapping[str, Any] | None) -> Turn:
    question, is_question, at = asked["text"], asked["is_question"], asked["at"]
    if answered is None:
        return Turn(question=question, is_question=is_question, at=at)
    answer, state, run_id = answered["text"], answered["state"], answered["run_id"]
    return Turn(question=question, answer=answer, state=state, is_question=is_question, run_id=run_id, at=at)
