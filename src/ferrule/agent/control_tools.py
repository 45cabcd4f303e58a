"""Tools about the conversation: its history, asking the user, and finishing the task.

An agent handles `ask_user` and `finish_task` itself: the run waits or ends. For other callers, `ask_user` asks the
person at the terminal or client, and `finish_task` only reports that the task is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, Literal

from ferrule.core.call import ToolExecutionContext
from ferrule.core.elicitation import Elicitation, OnElicit
from ferrule.core.spec import Tool
from ferrule.engine.plugins import PluginContext
from ferrule.errors import Refuse
from ferrule.kinds.function.tools import tool_of
from ferrule.memory.conversation import DEFAULT_CONVERSATION, ConversationMemory
from ferrule.store import ToolKnowledgeStore

HISTORY_TOOL: Final = "get_conversation_history"
FINISH_TASK: Final = "FINISH_TASK"
ASK_USER: Final = "ASK_USER"
CONTROL_TOOLS: Final = ("finish_task", "ask_user")
"""The tools that control a run."""
_MAX_TURNS: Final = 100
_NO_QUESTIONS: Final = "Nothing was asked before in this conversation."


async def finish_task(message: str) -> dict[str, Any]:
    """End the task with the answer, or with the reason why there is none. 结束任务。"""
    return {"system": FINISH_TASK, "message": message}


async def ask_user(question: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """Ask the user something you need to know and cannot find out. 向用户提问。"""
    return {"system": ASK_USER, "question": question, "options": list(options)}


_SHORT_DESCRIPTIONS: Final = {
    "en": {"finish_task": "End the task with the answer.", "ask_user": "Ask the user what only the user can know."},
    "zh": {"finish_task": "给出答案并结束任务。", "ask_user": "向用户询问只有用户才知道的信息。"},
}


@cache
def control_tools(language: str = "en") -> tuple[Tool, ...]:
    """Return the control tools for agents, which handle these calls themselves. All agents share them.

    Their descriptions are short, because they are part of every request.
    """
    texts = _SHORT_DESCRIPTIONS[language]
    return (
        _make_control_tool(finish_task, [{"message": "It is done."}], texts["finish_task"]),
        _make_control_tool(ask_user, [_EXAMPLE_QUESTION], texts["ask_user"]),
    )


_EXAMPLE_QUESTION: Final = {"question": "Which colour?", "options": ["red", "blue"]}


def conversation_tools(store: ToolKnowledgeStore, ask: OnElicit | None) -> list[Tool]:
    """Return the tools for callers that are not agents. `ask` asks the person who is present, if any."""

    async def ask_user(question: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Ask the user something you need to know and cannot find out. 向用户提问。

        Args:
            question: what you want to know
            options: answers to choose from, if there are few
        """
        if ask is None:
            raise Refuse("No user can be asked here. Continue with what you know, and say what you assumed.")
        field: dict[str, Any] = {"type": "string", "title": "Answer"}
        field |= {"enum": list(options)} if options else {}
        schema = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
        reply = await ask(Elicitation(tool_id="ask_user", message=question, schema=schema))
        if reply is None:
            raise Refuse("The user does not want to answer this. Continue without it.")
        return {"answer": reply.get("answer", "")}

    ask_tool = _make_control_tool(ask_user, [_EXAMPLE_QUESTION])
    return [
        history_tool(ConversationMemory(store)),
        _make_control_tool(finish_task, [{"message": "It is done."}]),
        ask_tool,
    ]


def plugin(context: PluginContext) -> list[Tool]:
    """Return the conversation tools for the entry point group `ferrule.tools`."""
    return conversation_tools(context.engine.store, context.engine.on_elicit)


def _make_control_tool(function: Callable[..., Any], examples: list[dict[str, Any]], description: str = "") -> Tool:
    tool = tool_of(function, description=description, tags=["control"], idempotent=True, examples=examples)
    return replace(tool, source="builtin")


def history_tool(memory: ConversationMemory) -> Tool:
    """Return a tool that shows the conversation as it was when the question of the calling run arrived."""

    async def get_conversation_history(
        context: ToolExecutionContext, query: Literal["last_question", "questions", "all"] = "all", limit: int = 10
    ) -> Any:
        """Look up what the user asked earlier in this conversation, and what was answered. 查询对话历史。

        Args:
            query: the last question, all questions, or all questions with their answers
            limit: how many at most, the latest ones
        """
        conversation_id = context.conversation_id
        if conversation_id is None:
            if context.principal.kind != "user" or context.principal.tenant:
                return _NO_QUESTIONS  # a client's calls are no conversation, and the default one is the local user's
            conversation_id = DEFAULT_CONVERSATION
        # Outside a run, the id is that of the conversation itself.
        snapshot = await memory.snapshot_of(conversation_id) or memory.create_snapshot(conversation_id)
        turns = [turn for turn in await snapshot.turns() if turn.is_question]
        turns = turns[-max(1, min(limit, _MAX_TURNS)) :]
        if not turns:
            return _NO_QUESTIONS
        if query == "last_question":
            return turns[-1].question
        if query == "questions":
            return [turn.question for turn in turns]
        return [{"question": turn.question, "answer": turn.answer} for turn in turns]

    tool = tool_of(
        get_conversation_history,
        read_only=True,
        idempotent=True,
        tags=["history", "conversation", "历史"],
        examples=[{"query": "last_question"}, {"query": "all", "limit": 3}],
    )
    return replace(tool, source="builtin")
