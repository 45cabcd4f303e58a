"""Tools that have to do with the user: what was said before, asking, and being done.

An agent answers `ask_user` and `finish_task` itself: a run waits, or ends. Called by anybody else, `ask_user` asks
whoever sits at the terminal or before the client, and `finish_task` only says that something is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from ferrule.call import ToolExecutionContext
from ferrule.errors import Refuse
from ferrule.executors.mcp.elicitation import Elicitation, OnElicit
from ferrule.memory.conversation import DEFAULT, ConversationMemory, Turn
from ferrule.sources import tool_of
from ferrule.spec import Tool
from ferrule.store import ToolKnowledgeStore

HISTORY_TOOL: Final = "get_conversation_history"
FINISH_TASK: Final = "FINISH_TASK"
ASK_USER: Final = "ASK_USER"
CONTROL: Final = ("finish_task", "ask_user")
"""The tools that steer a run."""
_MOST: Final = 100
_NOTHING: Final = "Nothing was asked before in this conversation."


async def finish_task(message: str = "") -> dict[str, Any]:
    """End the task when it is done, or when it cannot be done. 结束任务。

    Args:
        message: the answer for the user, or why there is none
    """
    return {"system": FINISH_TASK, "message": message}


async def ask_user(question: str, options: list[str] | None = None) -> dict[str, Any]:
    """Ask the user something you need to know and cannot find out. The task goes on with the answer. 向用户提问。

    Args:
        question: what you want to know
        options: answers to choose from, if there are few
    """
    return {"system": ASK_USER, "question": question, "options": options or []}


def control_tools() -> list[Tool]:
    """For an agent, which answers them itself."""
    return [_control(finish_task, [{"message": "It is done."}]), _control(ask_user, [_ASKED])]


_ASKED: Final = {"question": "Which colour?", "options": ["red", "blue"]}


def conversation_tools(store: ToolKnowledgeStore, ask: OnElicit | None) -> list[Tool]:
    """For everybody else. `ask` asks the person who is there, if anybody is."""

    async def ask_user(question: str, options: list[str] | None = None) -> dict[str, Any]:
        """Ask the user something you need to know and cannot find out. 向用户提问。

        Args:
            question: what you want to know
            options: answers to choose from, if there are few
        """
        if ask is None:
            raise Refuse("Nobody can be asked here. Go on with what you know, and say what you assumed.")
        field: dict[str, Any] = {"type": "string", "title": "Answer"}
        field |= {"enum": options} if options else {}
        schema = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
        said = await ask(Elicitation(tool_id="ask_user", message=question, schema=schema))
        if said is None:
            raise Refuse("The user does not want to answer this. Go on without it.")
        return {"answer": said.get("answer", "")}

    asking = _control(ask_user, [_ASKED])
    return [history_tool(ConversationMemory(store)), _control(finish_task, [{"message": "It is done."}]), asking]


def _control(function: Callable[..., Any], examples: list[dict[str, Any]]) -> Tool:
    return replace(tool_of(function, tags=["control"], idempotent=True, examples=examples), source="builtin")


def history_tool(memory: ConversationMemory) -> Tool:
    """Sees the conversation as it was when the question of the calling run arrived."""

    async def get_conversation_history(
        context: ToolExecutionContext, query: Literal["last_question", "questions", "all"] = "all", limit: int = 10
    ) -> Any:
        """Look up what the user asked earlier in this conversation, and what was answered. 查询对话历史。

        Args:
            query: the last question, all questions, or all questions with their answers
            limit: how many at most, the latest ones
        """
        asker = context.conversation_id or DEFAULT
        # Called outside a run, it is about the conversation that the caller names.
        snapshot = await memory.snapshot_of(asker) or memory.create_snapshot(asker)
        turns = [turn for turn in await snapshot.turns() if turn.is_question]
        return _told(turns[-max(1, min(limit, _MOST)) :], query)

    made = tool_of(
        get_conversation_history,
        read_only=True,
        idempotent=True,
        tags=["history", "conversation", "历史"],
        examples=[{"query": "last_question"}, {"query": "all", "limit": 3}],
    )
    return replace(made, source="builtin")


def _told(turns: Sequence[Turn], query: str) -> Any:
    if not turns:
        return _NOTHING
    if query == "last_question":
        return turns[-1].question
    if query == "questions":
        return [turn.question for turn in turns]
    return [{"question": turn.question, "answer": turn.answer} for turn in turns]
