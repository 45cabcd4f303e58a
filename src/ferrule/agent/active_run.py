"""A run in progress in this process, and the ways in which it ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from ferrule.agent.answer import AgentAnswer, AgentState, RunEnded, RunPaused
from ferrule.agent.formats import ReplyFormat
from ferrule.agent.output import MAX_OUTPUT_ATTEMPTS, OutputType
from ferrule.agent.prompts import explain_stop
from ferrule.agent.run import Run
from ferrule.agent.turn import RunServices, TurnExecutor
from ferrule.core.events import RunEvents
from ferrule.core.messages import text_of_message, user_message
from ferrule.texts.language import detect_language
from ferrule.texts.prompts import prompt_texts

logger = logging.getLogger("ferrule.agent")

MAX_EMPTY_REPLIES: Final = 3
"""The run is stopped after this many replies in a row without a call or an answer."""


@dataclass(slots=True, kw_only=True)
class ActiveRun:
    """A run in progress: its state, and the objects that work on it."""

    run: Run
    services: RunServices
    turn: TurnExecutor
    format: ReplyFormat
    events: RunEvents
    output: OutputType | None = None
    """The type of the answer, if the caller named one."""
    rejected_outputs: int = 0
    empty_replies: int = 0
    failed_turns: int = 0

    def end_if_finished(self) -> bool:
        """End the run if its model has called `finish_task`. The answer may be in the text beside the call."""
        run = self.run
        if run.finish_message is None:
            return False
        replies = (text_of_message(message) for message in reversed(run.messages) if message["role"] == "assistant")
        text = run.finish_message if run.finish_message.strip() else next(replies, "")
        if text.strip():
            self.finish(text)
        else:
            run.finish_message = None
            self.send_correction(prompt_texts(detect_language(run.task)).no_answer)
        return True

    def finish(self, text: str) -> None:
        """End the run with this answer; if it is not of the type of the run's output, tell the model why."""
        run, output = self.run, self.output
        if output is None:
            run.end(AgentState.FINISHED, text)
            return
        try:
            run.value = output.parse(text)
        except ValueError as error:
            self.rejected_outputs += 1
            if self.rejected_outputs >= MAX_OUTPUT_ATTEMPTS:
                self.stop(f"the model gave no answer of the type {output.name}: {error}")
            else:
                run.add(user_message(f"This is not an answer of the required form: {error}.\n\n{output.instruction}"))
        else:
            run.end(AgentState.FINISHED, output.format(run.value))

    def send_correction(self, text: str) -> None:
        self.empty_replies += 1
        if self.empty_replies >= MAX_EMPTY_REPLIES:
            self.stop(f"the model gave {self.empty_replies} replies in a row without a call or an answer")
        else:
            self.run.add(user_message(text))

    def stop(self, reason: str) -> None:
        """End the run without an answer; its text says what was tried."""
        run = self.run
        shown_reason = self.services.engine.store.get_run_secrets(run.id).redact(reason)
        logger.info("run=<%s>, turns=<%d> | stopped: %s", run.id, run.turns, shown_reason)
        run.end(AgentState.STOPPED, explain_stop(run.context, reason, language=detect_language(run.task)), reason)

    def emit_answer(self) -> AgentAnswer[Any]:
        answer = self.run.answer(self.services.subagent.get_brief_summary())
        self.services.emit(RunPaused(answer) if answer.state is AgentState.WAITING else RunEnded(answer))
        return answer
