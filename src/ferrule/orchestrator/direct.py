"""One call of the model and no tools: for what the model can answer out of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrule.agent.account import account
from ferrule.agent.answer import AgentAnswer, AgentState
from ferrule.agent.events import TextPiece
from ferrule.agent.prompts import language_of
from ferrule.agent.run import Run
from ferrule.errors import ModelError
from ferrule.messages import Message, assistant_message, system_message, user_message
from ferrule.models.model import Model, ModelRequest
from ferrule.orchestrator.flights import Tell
from ferrule.store import ToolCallSummary, ToolKnowledgeStore

_SYSTEM: Final = {
    "en": "Answer the question. Be brief and exact; say so if you do not know.",
    "zh": "请回答问题。简明准确；不知道就说不知道。",
}


async def answer_directly(
    task: str,
    model: Model,
    store: ToolKnowledgeStore,
    *,
    run_id: str,
    instructions: str,
    history: Sequence[Message],
    tell: Tell | None,
) -> AgentAnswer:
    """What the model says, written down as a run like any other: after a crash an agent can go on with it."""
    run, language = Run(task, store, run_id), language_of(task)
    told = "\n\n".join(filter(None, [_SYSTEM[language], instructions]))
    run.begin([system_message(told), *history, user_message(task)])
    on_text = None if tell is None else lambda text: tell(TextPiece(text))
    try:
        reply = await model.generate(ModelRequest(messages=run.messages), on_text)
    except ModelError as error:
        run.end(AgentState.STOPPED, account(run.context, str(error), language=language), str(error))
    else:
        said = assistant_message(reply.text)
        run.said(said, [], reply.usage, kept=said)
        text, reason = reply.text.strip(), f"the model {model.name!r} said nothing"
        if text:
            run.end(AgentState.FINISHED, text)
        else:
            run.end(AgentState.STOPPED, account(run.context, reason, language=language), reason)
    return run.answer(ToolCallSummary(conversation_id=run_id).to_brief())
