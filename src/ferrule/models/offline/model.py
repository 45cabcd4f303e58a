"""A model that needs no key: it chooses tools by their words.

Nothing is stored between turns. The steps of a question are computed again each time and compared with the calls that
were made since it was asked: so a conversation can continue in another process, and no call is made twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

from ferrule.core.json_schema import allowed_types, properties_of, resolve_schema
from ferrule.core.messages import Message, ToolCall, Usage, text_of_message
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import JsonSchema
from ferrule.errors import ModelRefused
from ferrule.models.offline.argument_filling import fill_parameters
from ferrule.models.offline.tool_choice import MIN_CONFIDENCE, ChosenTool, choose_tool, find_possible_tool
from ferrule.models.offline.tools import OfferedTool, OfferedTools, OfferedToolsCache
from ferrule.models.offline.values import RESULT_END, RESULT_START, Sentence, find_paths
from ferrule.texts.answers import answer_sentence, error_text, main_text, parse_json
from ferrule.texts.error_messages import translate_error
from ferrule.texts.fixed_replies import OFFLINE_MODEL
from ferrule.texts.language import detect_language
from ferrule.texts.numbers import DIGITS, NUMBER
from ferrule.texts.phrases import REWRITES, TEXT_TASK
from ferrule.texts.shorten import shorten, single_line

# The steps that a question asks for, in order. `… and then …`, sentences, a numbered list, 然后 and ； separate steps.
# A plain `and` or a comma separates them only if each side asks for a tool: `weather in Paris and time in Tokyo`, but
# not `3 and 5`. No pattern here begins with a repeated space: a page of spaces would take minutes.

_SEPARATOR = lazy_pattern(
    r"[;；\n]+\s*"
    r"|(?:(?<=[\w)\"'”]{2}\.)|(?<=[\w)\"'”][!?]))\s+(?=[A-Z\u4e00-\u9fff\"“])"
    r"|(?<=[。！？])\s*"
    r"|(?<=\s)(?:and\s+then|then|after\s+that|afterwards|and\s+also|and\s+finally|finally|and\s+after\s+that)\b,?\s*"
    r"|(?:然后再?|接着再?|之后再?|随后|最后再?|并且|同时)[，,]?\s*"
    r"|[，,]\s*再(?=[把将用加减乘除翻发查算])"
)
_POSSIBLE_SEPARATOR = lazy_pattern(
    r"(?<=\s)and\s+|[，,]\s*(?:and\s+)?(?!内容)|以及|还有|并(?=[把将])|和(?=[\u4e00-\u9fff]{2})|(?<=\s)as\s+well\s+as\s+"
)
_LIST_NUMBER = lazy_pattern(
    r"(?:(?<=\s)|\A)(?:\(?\d{1,2}[.)、]|[①②③④⑤⑥⑦⑧⑨⑩])\s+(?=\S)|^\s*[-*•]\s+|(?:^|\s)(?:first|second|third)(?:ly)?,\s*",
    re.IGNORECASE | re.MULTILINE,
)
_CONJUNCTION = lazy_pattern(
    r"\A(?:and|then|also|next|finally|first|然后|接着|再|并|最后|首先|先)\b[\s,，]*|\A[，,]\s*", re.IGNORECASE
)
_REMARK = lazy_pattern(
    r"(?:i\s+(?:am|was|have|had|love|like|think|feel|shut|deleted|just)\b|i['’]|we\s|thank|hello\b|hi\b|hey\b"
    r"|(?:my|the|his|her|its|their|our|it|this|that|these|your)\b[\w\s'’-]*?\b(?:is|are|was|should|will|can|has|have)\b"
    r"|我们|我是|我在|你好|谢谢)",
    re.IGNORECASE,
)
_ABBREVIATION = lazy_pattern(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|No|e\.g|i\.e|approx)\.\Z")
_REFERENCE = lazy_pattern(
    r"(?<!\bis )(?<!\bas )(?<!\bwas )(?<!\bwill )\b(?:it|them)\b(?!['’]s\b|\s+(?:is|are|was|will)\b)"
    r"|\b(?:that|this|the|its)\s+(?:result|answer|output|sum|total|number|value|text|contents?|translation|product)\b"
    r"|\b(?:that|this)\b(?=\s*(?:[?.!]|\Z|to\b|by\b|into\b|in\b))"
    r"|(?:这个|该|上述|上面的|得到的)?(?:结果|答案)|它|这个数"
)
_LACKS_OPERAND = lazy_pattern(
    rf"\A(?:multiply|divide)\s+by\s+{NUMBER}|\A(?:add|subtract)\s+{NUMBER}\s*[.?!]?\Z"
    r"|\A(?:plus|minus|times|divided by)\s"
    r"|\A(?:double|halve|triple|square)\s*[.?!]?\Z|\A(?:再)?(?:加上?|减去?|乘以?|除以|翻倍|减半|平方)",
    re.IGNORECASE,
)
_SINGLE_NUMBER = lazy_pattern(rf"\s*[^\w\s-]?(-?{DIGITS})\s?\S{{0,4}}\s*")
"""Perhaps with a currency sign before it, or a unit after it."""
_MAX_CUTS = 8


def split_steps(question: str, is_request: Callable[[str], bool]) -> list[str]:
    """Return the steps of a question; `is_request` says whether a text asks for a tool by itself."""
    for pattern, steps in REWRITES:
        match = re.fullmatch(pattern, question.strip(), re.IGNORECASE)
        if match is not None:
            return _split_at_separators(steps.format(**match.groupdict()))
    if TEXT_TASK.match(question):
        return [question.strip()]
    return [step for part in _split_at_separators(question) for step in _split_at_conjunctions(part, is_request)]


def refers_to_result(step: str) -> bool:
    """Return whether a step refers to the result of the one before: `double it`, `the result`, `plus 3`."""
    text = Sentence(step).unquoted
    return _REFERENCE.search(text) is not None or _LACKS_OPERAND.search(text) is not None


def insert_result(step: str, result: str) -> str:
    """Return the step with the result in the place of the reference."""
    number = _SINGLE_NUMBER.fullmatch(result)
    is_path = [path.value for path in find_paths(result)] == [result]
    value = number[1].replace(",", "") if number else result if is_path else f"{RESULT_START}{result}{RESULT_END}"
    reference = _REFERENCE.search(Sentence(step).unquoted)
    if reference is not None:
        return step[: reference.start()] + value + step[reference.end() :]
    verb = re.match(r"(?:再)?(multiply|divide|add|subtract)\b", step, re.IGNORECASE)
    if verb is None:
        is_verb_only = re.match(r"[a-z]+\s*[.?!]?\Z", step, re.IGNORECASE)
        return f"{step.rstrip(' .?!')} {value}" if is_verb_only else f"{value} {step.removeprefix('再')}"
    rest = step[verb.end() :].rstrip(" .?!")
    completed = {"add": f"add{rest} to {value}", "subtract": f"subtract{rest} from {value}"}
    return completed.get(verb[1].lower(), f"{verb[1]} {value}{rest}")


def asks_for_nothing(part: str) -> bool:
    """Return whether a sentence asks for nothing: it is a statement, or polite."""
    return _REMARK.match(part) is not None and "?" not in part and "？" not in part


def _split_at_separators(question: str) -> list[str]:
    """At separators that are certain. Quoted text is never split."""
    text = Sentence(question).unquoted
    cuts = list(_SEPARATOR.finditer(text))
    numbers = list(_LIST_NUMBER.finditer(text))
    cuts += numbers if len(numbers) > 1 else []
    parts, at = [], 0
    for cut in sorted(cuts, key=lambda match: match.start()):
        if cut.start() < at or _ABBREVIATION.search(question[: cut.start()]):
            continue
        parts.append(question[at : cut.start()])
        at = cut.end()
    parts.append(question[at:])
    return [part for part in map(_without_conjunctions, parts) if any(map(str.isalnum, part))]


def _split_at_conjunctions(part: str, is_request: Callable[[str], bool]) -> list[str]:
    """At `and` or a comma, if both sides are requests; the second one may refer to the result of the first one."""
    for cut in islice(_POSSIBLE_SEPARATOR.finditer(Sentence(part).unquoted), _MAX_CUTS):
        first, second = _without_conjunctions(part[: cut.start()]), _without_conjunctions(part[cut.end() :])
        completed = insert_result(second, "7") if refers_to_result(second) else second
        if first and second and is_request(first) and is_request(completed):
            return [first, *_split_at_conjunctions(second, is_request)]
    return [part]


def _without_conjunctions(part: str) -> str:
    part = part.strip(" \t\r，,")
    while (shorter := _CONJUNCTION.sub("", part)) != part:
        part = shorter
    return part.strip()


# Answers that must follow a schema: plans made of a question's steps, and objects made of its values.

_NO_TOOL = "none"


def answer_by_schema(schema: Mapping[str, Any], question: str, tools: OfferedTools) -> str:
    """JSON that follows the schema, made of the question alone; `ModelRefused` if that is not possible."""
    root = dict(schema)
    form = OfferedTool(name="answer", description="", schema=root)
    steps = resolve_schema(properties_of(resolve_schema(root, root)).get("steps"), root)
    is_plan = "tool_type" in properties_of(resolve_schema(steps.get("items"), root))
    answer = {"steps": _make_plan(question, tools)} if is_plan else _make_object(form, question)
    if not form.accepts(answer):
        raise ModelRefused(
            "The offline model cannot give an answer of this form: it can make plans out of a question's steps and "
            "objects out of its values, nothing else. Use a real model: see `ferrule models`."
        )
    return json.dumps(answer, ensure_ascii=False)


def _make_plan(question: str, tools: OfferedTools) -> list[dict[str, Any]]:
    """Return a step for each request, as `ferrule.workflow.plan` reads them."""

    def is_request(text: str) -> bool:
        choice = choose_tool(tools, text)
        return choice is not None and choice.is_ready

    plan = []
    for number, step in enumerate(split_steps(question, is_request), 1):
        depends = number > 1 and refers_to_result(step)
        choice = choose_tool(tools, insert_result(step, "1") if depends else step)
        has_arguments = choice is not None and choice.is_ready and not depends
        plan.append(
            {
                "id": number,
                "description": step,
                "tool_type": choice.tool.name if choice is not None else _NO_TOOL,
                "parameters": choice.filled.calls[0] if choice is not None and has_arguments else {},
                "dependencies": [number - 1] if depends else [],
            }
        )
    return plan


def _make_object(form: OfferedTool, question: str) -> dict[str, Any] | None:
    """Return the values of the question; None for a schema that asks for something else."""
    root: JsonSchema = resolve_schema(form.schema, form.schema)
    if "object" not in (allowed_types(root) or ["object"]):
        return None
    properties = {name: resolve_schema(inner, form.schema) for name, inner in properties_of(root).items()}
    defaults = {
        name: schema.get("const", schema.get("default"))
        for name, schema in properties.items()
        if "const" in schema or "default" in schema
    }
    answer = {**fill_parameters(form, question).calls[0], **defaults}
    return answer if answer or not root.get("required") else None


_FAILURE_BEGINNING = lazy_pattern(
    r"\s*(?:\W{0,3}(?:error|failed|failure|known_failure|invalid|unable|cannot|could not|no such|timed out)\b"
    r"|\w+(?:Error|Exception):|错误|失败|无法)|.{0,200}\bdid you mean\b",
    re.IGNORECASE,
)
"""How results begin that report a failure, for requests that do not say which calls failed."""
_AGENT_NOTE = lazy_pattern(r"\[[^\]]*\]")
"""A message of the user in brackets was written by the agent."""


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A call that was made for the question, and its result."""

    name: str
    arguments: dict[str, Any]
    result: str
    is_failed: bool


def read_conversation(request: ModelRequest) -> tuple[str, list[CompletedCall]]:
    """Return the question that is being worked on, and the calls made since it was asked."""
    messages = request.messages
    answers = [i for i, m in enumerate(messages) if m.get("role") == "assistant" and not m.get("tool_calls")]
    user_messages = [
        i
        for i, message in enumerate(messages)
        if message.get("role") == "user" and not _AGENT_NOTE.fullmatch(text_of_message(message).strip())
    ]
    new = [i for i in user_messages if not answers or i > answers[-1]]
    # Between the calls an agent may comment on them: the first message, and those directly after it, are the question.
    first = next(iter(new or user_messages[-1:]), len(messages))
    parts = [i for n, i in enumerate(new or [first]) if i == first + n and i < len(messages)]
    question = "\n".join(text_of_message(messages[i]) for i in parts).strip()
    return question, _read_completed_calls(messages[first + 1 :], request.failed_calls)


def _read_completed_calls(messages: Sequence[Message], failed: frozenset[str] | None) -> list[CompletedCall]:
    results = {m.get("tool_call_id"): text_of_message(m) for m in messages if m.get("role") == "tool"}
    completed = []
    for call in (call for message in messages for call in message.get("tool_calls") or ()):
        function, result = call.get("function") or {}, results.get(call.get("id"))
        if result is not None:
            arguments, output = parse_json(function.get("arguments") or "{}"), parse_json(result)
            arguments = arguments if isinstance(arguments, dict) else {}
            is_failed = call.get("id") in failed if failed is not None else bool(_FAILURE_BEGINNING.match(result))
            if isinstance(output, dict):
                says_error = bool(output.get("error")) or output.get("isError") is True
                is_failed = is_failed or says_error or output.get("success") is False
            completed.append(CompletedCall(str(function.get("name")), arguments, result, is_failed))
    return completed


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
    ignored_settings = ("temperature", "max_tokens")

    def __init__(self) -> None:
        self._tools = OfferedToolsCache()

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        """Return the next calls for the last question of the conversation, or the results of the calls made for it."""
        request = ModelRequest.of(request)
        question, completed = read_conversation(request)
        tools = self._tools.get(request.tools)
        if request.answer_schema is not None:
            return _text_reply(answer_by_schema(request.answer_schema, question, tools), on_text)
        turn = _OfflineTurn(tools, question, completed, is_required=request.tool_choice == "required")
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

    def __init__(
        self, tools: OfferedTools, question: str, completed: list[CompletedCall], *, is_required: bool
    ) -> None:
        self._tools, self._question, self._unreported = tools, question, completed
        self._required_tool = next(iter(tools.by_name.values())) if is_required and len(tools.by_name) == 1 else None
        min_confidence = _MIN_CONFIDENCE_IF_REQUIRED if is_required else MIN_CONFIDENCE
        self._choose = cache(partial(choose_tool, tools, min_confidence=min_confidence))
        self._language = detect_language(question)
        self._messages = OFFLINE_MODEL[self._language]
        self._last_result: str | None = None
        self._skipped_steps: list[str] = []
        self.calls: list[ToolCall] = []
        self.lines: list[str] = []

    def process_question(self) -> None:
        """Make the calls of the question, or report those that are completed, step by step."""
        for index, step in enumerate(split_steps(self._question, self._is_request)):
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
            if choice is None and (tool := self._required_tool) is not None:
                # It must be called: it is if the text has its arguments, whatever the other words are.
                required = ChosenTool(tool=tool, filled=fill_parameters(tool, text), confidence=0.0)
                choice = required if required.is_ready and any(required.filled.calls) else None
            if choice is None:
                self._skipped_steps.append(step)
            else:
                self._call_or_report(choice)

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
        question = shorten(single_line(self._question), _MAX_REPEATED_LENGTH)
        tool = find_possible_tool(self._tools, self._question)
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
            # The arguments of a call that was made may differ: a person edited them, or time has passed.
            same_tool = [call for call in self._unreported if call.name == choice.tool.name]
            same = next((call for call in same_tool if call.arguments == arguments), next(iter(same_tool), None))
            if same is None:
                self.calls.append(ToolCall(name=choice.tool.name, arguments=arguments))
            else:
                self._unreported.remove(same)
                self._report_result(same, choice)

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
