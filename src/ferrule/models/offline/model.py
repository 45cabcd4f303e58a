"""A model that needs no key: it chooses tools by their words.

Nothing is stored between turns. The steps of a question are computed again each time and compared with the calls that
were made since it was asked: so a conversation can continue in another process, and no call is made twice.
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.models.offline.argument_filling import fill_parameters
from ferrule.models.offline.conversation import CompletedCall, ParsedConversation, read_conversation
from ferrule.models.offline.planning import answer_by_schema
from ferrule.models.offline.steps import asks_for_nothing, insert_result, refers_to_result, split_steps
from ferrule.models.offline.tool_choice import MIN_CONFIDENCE, ChosenTool, choose_tool, find_possible_tool
from ferrule.models.offline.tools import OfferedTool, OfferedTools, OfferedToolsCache
from ferrule.texts.answers import answer_sentence, error_text, main_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.fixed_replies import OFFLINE_MODEL
from ferrule.texts.language import detect_language
from ferrule.texts.shorten import shorten, single_line

_MIN_CONFIDENCE_IF_REQUIRED = 0.2
_MAX_REPEATED_LENGTH = 80


class OfflineModel:
    """Answers with the tools of the request, and with nothing else; the same question gets the same calls.

    It needs no key, no network and no weights. It knows nothing about the world beyond time zones and units, and
    nothing about any tool beyond what its schema says.
    """

    name = "offline"
    can_reason = False
    selects_tools = True

    def __init__(self) -> None:
        self._tools = OfferedToolsCache()

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        """Return the next calls for the last question of the conversation, or the results of the calls made for it."""
        request = ModelRequest.of(request)
        conversation = read_conversation(request)
        tools = self._tools.get(request.tools)
        if request.answer_schema is not None:
            return _text_reply(answer_by_schema(request.answer_schema, conversation.question, tools), on_text)
        turn = _OfflineTurn(tools, conversation, is_required=request.tool_choice == "required")
        if request.tool_choice != "none":
            turn.process_question()
        turn.report_remaining()
        if turn.calls:
            return ModelReply(tool_calls=tuple(turn.calls), usage=Usage(requests=1), finish_reason="tool_calls")
        if not turn.lines:
            return _text_reply(turn.refusal, on_text, "refused")
        return _text_reply("\n".join(turn.lines), on_text)


def _text_reply(text: str, on_text: TextSink | None, finish_reason: FinishReason = "stop") -> ModelReply:
    if on_text is not None:
        on_text(text)
    return ModelReply(text=text, usage=Usage(requests=1), finish_reason=finish_reason, is_verbatim=True)


class _OfflineTurn:
    """The calls to make now, and the text if there are none."""

    def __init__(self, tools: OfferedTools, conversation: ParsedConversation, *, is_required: bool) -> None:
        self._tools = tools
        self._conversation = conversation
        self._required_tool = next(iter(tools.by_name.values())) if is_required and len(tools.by_name) == 1 else None
        min_confidence = _MIN_CONFIDENCE_IF_REQUIRED if is_required else MIN_CONFIDENCE
        self._choose = cache(partial(choose_tool, tools, min_confidence=min_confidence))
        self._unreported = list(conversation.calls)
        self._language = detect_language(conversation.question)
        self._messages = OFFLINE_MODEL[self._language]
        self._last_result: str | None = None
        self._skipped_steps: list[str] = []
        self.calls: list[ToolCall] = []
        self.lines: list[str] = []

    def process_question(self) -> None:
        """Make the calls of the question, or report those that are completed, step by step."""
        for index, step in enumerate(split_steps(self._conversation.question, self._is_request)):
            text = step
            if index and refers_to_result(step):
                if self.calls:
                    return  # the result it refers to is still to come
                if self._last_result is None:
                    self.lines.append(self._messages["no_result"].format(step=re.split("[:：]", step)[0]))
                    continue
                text = insert_result(step, self._last_result)
                if len(self._last_result) > _MAX_REPEATED_LENGTH or "\n" in self._last_result:
                    self.lines.pop()  # a text that is only needed for this step
            choice = self._choose(text) if not asks_for_nothing(step) else None
            choice = choice or self._fill_required_tool(text)
            if choice is None:
                self._skipped_steps.append(step)
            else:
                self._call_or_report(choice)

    def _fill_required_tool(self, text: str) -> ChosenTool | None:
        """Return the only tool, if it must be called and the text has its arguments, whatever the other words are."""
        if self._required_tool is None:
            return None
        filled = fill_parameters(self._required_tool, text)
        choice = ChosenTool(tool=self._required_tool, filled=filled, confidence=0.0)
        return choice if choice.is_ready and any(choice.filled.calls) else None

    def report_remaining(self) -> None:
        """Report results that belong to no step, and steps that could not be done."""
        for call in self._unreported:  # these calls were made by another model, which read the steps differently
            self._report_result(call)
            self._skipped_steps = []
        self._unreported = []
        if self.lines:
            steps = [step for step in self._skipped_steps if not asks_for_nothing(step)]
            self.lines += [self._messages["skipped"].format(step=step) for step in steps]

    @property
    def refusal(self) -> str:
        """Return what is said if there is nothing to call and nothing to report."""
        question = shorten(single_line(self._conversation.question), _MAX_REPEATED_LENGTH)
        tool = find_possible_tool(self._tools, self._conversation.question)
        key = "no_question" if not question else "possible_tool" if tool is not None else "no_tool"
        return self._messages[key].format(step=question, tool=tool.display_name if tool is not None else "")

    def _is_request(self, text: str) -> bool:
        choice = self._choose(text)
        return choice is not None and choice.is_ready

    def _call_or_report(self, choice: ChosenTool) -> None:
        if not choice.is_ready:
            names = [f"{p.name} ({p.description})" if p.description else p.name for p in choice.filled.missing]
            text = self._messages["missing"].format(tool=choice.tool.display_name, names="; ".join(names))
            self.lines.append(text)
            return
        for arguments in choice.filled.calls:
            completed = self._take_completed(choice.tool, arguments)
            if completed is None:
                self.calls.append(ToolCall(name=choice.tool.name, arguments=arguments))
            else:
                self._report_result(completed, choice)

    def _take_completed(self, tool: OfferedTool, arguments: dict[str, Any]) -> CompletedCall | None:
        """Return the call as it was made; its arguments may differ because a person edited them, or time has passed."""
        same_tool = [call for call in self._unreported if call.name == tool.name]
        call = next((call for call in same_tool if call.arguments == arguments), same_tool[0] if same_tool else None)
        if call is not None:
            self._unreported.remove(call)
        return call

    def _report_result(self, call: CompletedCall, choice: ChosenTool | None = None) -> None:
        expression = choice.filled.expression if choice is not None and len(choice.filled.calls) == 1 else None
        subject, key = expression.subject if expression is not None else "", choice.answer_key if choice else ""
        self._last_result = None if call.is_failed else main_text(call.result)
        if call.is_failed:
            text, about = translate_error(error_text(call.result), self._language), subject.partition("|")[0]
            self.lines.append(self._messages["no_number" if about else "failure"].format(text=text, subject=about))
            return
        language = self._language
        sentence = answer_sentence(call.name, call.arguments, call.result, language=language, key=key, subject=subject)
        self.lines.append(sentence)
