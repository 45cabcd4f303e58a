"""What was said before, for models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrule.describe.sentences import within
from ferrule.memory.conversation import Turn
from ferrule.messages import Message, assistant_message, user_message

TOLD: Final = 10
"""So many turns are told to a model."""
_LONGEST: Final = 1_000
_HEADING: Final = {"en": "What was said before:", "zh": "之前的对话："}


def history_in_words(turns: Sequence[Turn], language: str) -> str:
    """The last turns for a prompt; empty when there are none."""
    told = [line for turn in turns[-TOLD:] for line in _lines(turn)]
    return "\n".join([_HEADING[language], *told]) if told else ""


def history_as_messages(turns: Sequence[Turn]) -> list[Message]:
    """The last turns that have answers, as a conversation with a model."""
    answered = [turn for turn in turns if turn.answer][-TOLD:]
    return [
        message
        for turn in answered
        for message in (user_message(turn.question), assistant_message(within(turn.answer, _LONGEST)))
    ]


def _lines(turn: Turn) -> list[str]:
    said = [f"user: {within(turn.question, _LONGEST)}"]
    return [*said, f"assistant: {within(turn.answer, _LONGEST)}"] if turn.answer else said
