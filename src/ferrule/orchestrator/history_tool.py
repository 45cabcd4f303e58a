"""The tool by which a model looks up what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from ferrule.call import ToolExecutionContext
from ferrule.orchestrator.memory import DEFAULT, ConversationMemory, Turn
from ferrule.sources import tool_of
from ferrule.spec import Tool

HISTORY_TOOL: Final = "get_conversation_history"
_MOST: Final = 100
_NOTHING: Final = "Nothing was asked before in this conversation."


def history_tool(memory: ConversationMemory) -> Tool:
    """Sees the conversation as it was when the question of the calling run arrived."""

    async def get_conversation_history(
        context: ToolExecutionContext, query: Literal["last_question", "questions", "all"] = "all", limit: int = 10
    ) -> Any:
        """Look up what the user asked earlier in this conversation, and what was answered.

        Args:
            query: the last question, all questions, or all questions with their answers
            limit: how many at most, the latest ones
        """
        asker = context.conversation_id or DEFAULT
        # Called outside a run, it is about the conversation that the caller names.
        snapshot = await memory.snapshot_of(asker) or memory.create_snapshot(asker)
        turns = [turn for turn in await snapshot.turns() if turn.is_question]
        return _told(turns[-max(1, min(limit, _MOST)) :], query)

    made = tool_of(get_conversation_history, read_only=True, idempotent=True, tags=["history", "conversation", "历史"])
    return replace(made, source="builtin")


def _told(turns: Sequence[Turn], query: str) -> Any:
    if not turns:
        return _NOTHING
    if query == "last_question":
        return turns[-1].question
    if query == "questions":
        return [turn.question for turn in turns]
    return [{"question": turn.question, "answer": turn.answer} for turn in turns]
