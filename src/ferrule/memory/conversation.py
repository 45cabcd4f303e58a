"""The questions and answers of a conversation, and snapshots of it.

A conversation is a stream of entries in the store: one when a question arrives, another when it is answered, under
keys that increase with time and are never reused. A snapshot is therefore not a copy but a key: it consists of all
entries with smaller keys, and later entries, also of questions asked at the same time, cannot get into it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ferrule.errors import StoreError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.entry_streams import find_last_key

CONVERSATION_PREFIX: Final = "conversation:"
RUN_PREFIX: Final = "asked:"
DEFAULT_CONVERSATION: Final = "default"
"""The conversation of callers that name none."""
MAX_TURNS: Final = 80
"""The oldest turns of a longer conversation are deleted."""
SYNCHRONIZE_TIMEOUT: Final = 5.0
"""Seconds that the first question of a conversation waits for the store."""
_MAX_NAMES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question with its answer."""

    question: str
    answer: str = ""
    state: str = "running"
    """`running`, then `finished`, `waiting`, `stopped`, `failed` or `cancelled`. One whose process was killed stays
    `running`: its run says that it is interrupted."""
    is_question: bool = True
    """False for greetings and for questions about the conversation itself."""
    run_id: str = ""
    principal: str = ""
    """Who asked."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """A conversation as it was at one point in time."""

    conversation_id: str
    before: str
    """Entries with smaller keys belong to the snapshot."""
    _store: ToolKnowledgeStore

    async def turns(self) -> tuple[Turn, ...]:
        """Return the turns, oldest first. A question that had no answer then has none here."""
        entries = await self._store.read_entries(CONVERSATION_PREFIX + self.conversation_id)
        await self._delete_oldest(entries)
        questions: dict[str, Mapping[str, Any]] = {}
        answers: dict[str, Mapping[str, Any]] = {}
        for key, entry in entries.items():
            if key >= self.before:
                break
            if entry["kind"] == "question":
                questions[key] = entry
            else:
                answers[entry["turn"]] = entry
        return tuple(_make_turn(entry, answers.get(key)) for key, entry in questions.items())

    async def questions(self) -> list[str]:
        return [turn.question for turn in await self.turns() if turn.is_question]

    async def _delete_oldest(self, entries: Mapping[str, Any]) -> None:
        if len(entries) > 3 * MAX_TURNS:
            # Small talk is deleted before questions, except the most recent entries.
            questions = {key for key, entry in entries.items() if entry["kind"] == "question" and entry["is_question"]}
            small_talk = {key for key in list(entries)[:-MAX_TURNS] if entries[key].get("turn", key) not in questions}
            others = [key for key in entries if key not in small_talk]
            await self._store.delete_entries(
                CONVERSATION_PREFIX + self.conversation_id, [*small_talk, *others[: -2 * MAX_TURNS]]
            )


class ConversationMemory:
    def __init__(self, store: ToolKnowledgeStore) -> None:
        self._store = store
        self._last = 0
        self._synchronized: dict[str, None] = {}
        """Conversations whose last keys are known."""
        self._synchronizing: dict[str, asyncio.Lock] = {}
        self._writer = os.urandom(3).hex()
        """Makes keys of different processes different."""
        self._open_questions: dict[str, dict[str, Any]] = {}
        """Questions without an answer, by turn: their runs may still show that they contain a secret."""
        self._readers: dict[str, None] = {}
        """Runs whose tools have read the conversation."""

    async def synchronize(self, conversation_id: str) -> None:
        """Continue after the last key of a conversation, which is later than now if the clock was set back since."""
        if conversation_id in self._synchronized:
            return
        async with self._synchronizing.setdefault(conversation_id, asyncio.Lock()):  # questions stay in their order
            if conversation_id not in self._synchronized:
                with suppress(StoreError, TimeoutError):  # then the clock alone decides
                    async with asyncio.timeout(SYNCHRONIZE_TIMEOUT):
                        key = await self._store.query(find_last_key, CONVERSATION_PREFIX + conversation_id) or ""
                        self._last = max(self._last, int(key.partition("-")[0] or 0))
                _add_bounded(self._synchronized, conversation_id)
        self._synchronizing.pop(conversation_id, None)

    def create_snapshot(self, conversation_id: str = DEFAULT_CONVERSATION) -> HistorySnapshot:
        """Return the conversation as it is now."""
        return HistorySnapshot(conversation_id=conversation_id, before=self._next_key(), _store=self._store)

    def add_question(
        self, conversation_id: str, question: str, *, is_question: bool = True, principal: str = ""
    ) -> str:
        """Store a question; returns the key of its turn."""
        entry = {"text": question, "is_question": is_question, "principal": principal, "at": time.time()}
        turn = self._write(conversation_id, "question", entry)
        self._open_questions[turn] = entry
        return turn

    def add_answer(self, conversation_id: str, turn: str, text: str, *, state: str, run_id: str = "") -> None:
        """Store the answer of a turn, without the secrets of its run; a second answer replaces the first."""
        question = self._open_questions.pop(turn, None)
        if run_id and (secrets := self._store.get_run_secrets(run_id)):
            text = secrets.redact(text)
            if question is not None and (cleaned := secrets.redact(question["text"])) != question["text"]:
                entry = {"kind": "question", **question, "text": cleaned}
                self._store.write_entry(CONVERSATION_PREFIX + conversation_id, turn, entry)
        self._write(conversation_id, "answer", {"turn": turn, "text": text, "state": state, "run_id": run_id})

    def bind_run(self, run_id: str, snapshot: HistorySnapshot, turn: str, **facts: Any) -> None:
        """Tie a run to the snapshot and to its turn, also for processes that resume it later."""
        entry = {"conversation_id": snapshot.conversation_id, "before": snapshot.before, "turn": turn, **facts}
        self._store.write_entry(RUN_PREFIX + run_id, "begin", entry)
        if (question := self._open_questions.get(turn)) is not None:
            question["run_id"] = run_id
            stream = CONVERSATION_PREFIX + snapshot.conversation_id
            self._store.write_entry(stream, turn, {"kind": "question", **question})

    async def get_run_binding(self, run_id: str) -> Mapping[str, Any] | None:
        """Return what `bind_run` stored for a run; None for a run that was not bound."""
        return (await self._store.read_entries(RUN_PREFIX + run_id)).get("begin")

    async def snapshot_of(self, run_id: str) -> HistorySnapshot | None:
        """Return the snapshot a run is tied to, for tools that read it."""
        _add_bounded(self._readers, run_id)
        bound = await self.get_run_binding(run_id)
        if bound is None:
            return None
        return HistorySnapshot(conversation_id=bound["conversation_id"], before=bound["before"], _store=self._store)

    def was_read_by(self, run_id: str) -> bool:
        """Return whether a tool of this run has read the conversation: then its result belongs to the conversation."""
        return run_id in self._readers

    def _write(self, conversation_id: str, kind: str, entry: dict[str, Any]) -> str:
        key = self._next_key()
        self._store.write_entry(CONVERSATION_PREFIX + conversation_id, key, {"kind": kind, **entry})
        return key

    def _next_key(self) -> str:
        self._last = max(time.time_ns(), self._last + 1)
        return f"{self._last:020}-{self._writer}"


def _add_bounded(names: dict[str, None], name: str) -> None:
    """Add a name; of too many, the oldest is removed."""
    names[name] = None
    if len(names) > _MAX_NAMES:
        del names[next(iter(names))]


def _make_turn(question: Mapping[str, Any], answer: Mapping[str, Any] | None) -> Turn:
    end = answer or {"text": "", "state": "running", "run_id": question.get("run_id", "")}
    return Turn(
        question=question["text"],
        answer=end["text"],
        state=end["state"],
        is_question=question["is_question"],
        run_id=end["run_id"],
        principal=question.get("principal", ""),
        at=question["at"],
    )
