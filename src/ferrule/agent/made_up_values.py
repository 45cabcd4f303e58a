"""Noticing what a model makes up instead of looking it up: values of arguments, and texts that replace unread ones.

A model is asked at most twice in a run, because a value may be right: if it makes the call again, the call is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.agent.run import Run
from ferrule.agent.toolbox import ResolvedCall, ToolOffer
from ferrule.core.json_schema import properties_of, required_names
from ferrule.core.messages import text_of_message
from ferrule.core.model import Model, can_reason, selects_tools
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.hub.synthesis import strategy_tag_of
from ferrule.texts.language import HAN, detect_language
from ferrule.texts.numbers import find_numbers
from ferrule.texts.prompts import prompt_texts

_MAX_SHOWN_TOOLS: Final = 5
_MAX_QUESTIONS: Final = 2
"""In a run; about different calls, because a small model that is asked about one value guesses another."""
_NUMBER = lazy_pattern(r"[1-9]\d+")
_NOT_ALPHANUMERIC = lazy_pattern(r"[\W_]+")
_FILE_NAME = lazy_pattern(r"[\w-]+\.[A-Za-z]\w{0,4}\b")
_EMAIL = lazy_pattern(r"[\w.+-]+@[\w-]+\.[\w.]+")
_SEVERAL_WORDS = lazy_pattern(rf"\s|[{HAN}]")
_BLANK_TO_FILL = lazy_pattern(r"\[[A-Z][A-Za-z ]{2,40}\]|<[A-Za-z]+[ _][A-Za-z_ ]{1,40}>")
_LOOKUP_NAME = lazy_pattern(
    r"(?:check|convert|count|fetch|find|get|list|look|lookup|query|read|search|show)(?:[_\W]|$)", re.IGNORECASE
)
"""Names of tools that look something up; for tools that do not say what they change."""


class MadeUpValueCheck:
    """Asks a small model about a value that it cannot know, instead of making its call.

    Small models write values before they have looked them up. Larger ones calculate with what they know, rightly.
    """

    def __init__(self, run: Run, model: Model) -> None:
        """A model in this process is taken for a small one, and so is one that writes its calls as text."""
        self._run, self._is_small_model = run, can_reason(model) and selects_tools(model)
        self._questioned_calls: set[Any] = set()

    def question(self, resolved: ResolvedCall, offer: ToolOffer) -> str | None:
        """What to tell the model instead of making its call; None if the call is to be made."""
        run, arguments = self._run, resolved.call.arguments
        if not (self._is_small_model or run.call_sources):
            return None
        if resolved.target is None or resolved.tool_id in CONTROL_TOOLS:
            return None
        if resolved.key in self._questioned_calls or len(self._questioned_calls) >= _MAX_QUESTIONS:
            return None
        context = "\n".join(map(text_of_message, run.messages[:-1]))
        texts, question = prompt_texts(detect_language(run.task)), None
        if (name := find_copied_example(arguments, resolved.target[1], context)) is not None:
            question = texts.copied_example.format(name=name)
        elif tools := self._list_unused_lookups(resolved, offer):
            name = _find_unknown_operand(arguments, context)
            if name is None:
                name = _find_unknown_value(*resolved.target, arguments, run.task, context)
            if name is not None:
                question = texts.made_up.format(name=name, tools=texts.comma.join(tools[:_MAX_SHOWN_TOOLS]))
            elif not _reads(*resolved.target) and (unread := _find_unread_text(run, arguments, offer)):
                question = texts.unread.format(value=unread[0], tool=unread[1])
            if question is not None:
                run.refused_names.add(resolved.original.name)  # so that the model calls one of the others first
        if question is not None:
            self._questioned_calls.add(resolved.key)
        return question

    def _list_unused_lookups(self, resolved: ResolvedCall, offer: ToolOffer) -> list[str]:
        """The other tools that could find a value; empty after a call that found something."""
        if any(step.is_success and not is_calculation(step.arguments) for step in self._run.steps):
            return []
        return [
            name
            for name, (tool, capability) in offer.actions.items()
            if tool.id not in CONTROL_TOOLS and tool.id != resolved.tool_id and _looks_up(tool, capability)
        ]


def _find_unread_text(run: Run, arguments: Mapping[str, Any], offer: ToolOffer) -> tuple[str, str] | None:
    """What a model gives a new text to without having read it, and the tool that reads it.

    It is named in the task, and the tool that reads has a parameter of the same name. A text of the task is right as it
    is.
    """
    task = _normalize(run.task)
    values = dict(_text_arguments(arguments))
    if not any(_SEVERAL_WORDS.search(text.strip()) and _normalize(text) not in task for text in values.values()):
        return None
    for reader, (tool, capability) in offer.actions.items():
        for name in properties_of(capability.schema_or_empty) if _reads(tool, capability) else ():
            value = values.get(name, "")
            if value.strip() and _normalize(value) in task:
                is_read = any(step.tool_id == tool.id and step.arguments.get(name) == value for step in run.steps)
                return None if is_read else (value, reader)
    return None


def _reads(tool: Tool, capability: ToolCapability) -> bool:
    """Whether an action changes nothing: it says so, or it says nothing and looks something up or calculates."""
    return tool.spec.effects_of(capability).read_only or _computes(tool) or _looks_up(tool, capability)


def _looks_up(tool: Tool, capability: ToolCapability) -> bool:
    """Whether an action finds something out: it changes nothing, or it says nothing about it and has such a name."""
    effects = tool.spec.effects_of(capability)
    is_lookup = effects.read_only or (effects == Effects() and _LOOKUP_NAME.match(capability.name) is not None)
    return is_lookup and not _computes(tool)


def _computes(tool: Tool) -> bool:
    """Whether a tool only computes something from its arguments."""
    return strategy_tag_of(tool.spec.tags) == "calculate"


def _find_unknown_value(
    tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any], task: str, context: str
) -> str | None:
    """The argument whose value a small model cannot know. Of a tool that looks something up, its keys are checked."""
    if _computes(tool):
        return _find_file_of_task(arguments, task)
    if _looks_up(tool, capability):
        required = required_names(capability.schema_or_empty)
        return find_made_up_key({name: value for name, value in arguments.items() if name in required}, context)
    return find_made_up_value(arguments, context)


def find_made_up_value(arguments: Mapping[str, Any], context: str) -> str | None:
    """The argument whose value a model cannot know: a number, an address, the name of a file for its content, a blank.

    `context` is all that the model was told. Other texts may be the model's own, as a letter is.
    """
    context = _normalize(context)
    for name, text in _text_arguments(arguments):
        if _normalize(text) in context or _FILE_NAME.fullmatch(text):
            continue
        values = [*_NUMBER.findall(text), *map(str.casefold, _EMAIL.findall(text))]
        has_new_value = any(value not in context for value in values)
        if has_new_value or _BLANK_TO_FILL.search(text) or (" " in text and _FILE_NAME.search(text)):
            return name
    return None


def find_made_up_key(arguments: Mapping[str, Any], context: str) -> str | None:
    """The argument that is a number or an id, as `T-002` is, which nobody has mentioned."""
    context_text = _NOT_ALPHANUMERIC.sub("", context).casefold()
    for name, text in _text_arguments(arguments):
        if " " in text.strip() or _FILE_NAME.fullmatch(text):
            continue
        has_letters = any(map(str.isalpha, text))
        parts = [_NOT_ALPHANUMERIC.sub("", text).casefold()] if has_letters else _NUMBER.findall(text)
        if any(map(str.isdigit, text)) and any(part not in context_text for part in parts):
            return name
    return None


def _find_unknown_operand(arguments: Mapping[str, Any], context: str) -> str | None:
    """The argument that is a calculation with a made-up number."""
    return next((name for name in arguments if find_made_up_operand({name: arguments[name]}, context)), None)


def _find_file_of_task(arguments: Mapping[str, Any], task: str) -> str | None:
    """The argument with the name of a file in it where the content would be needed."""
    return next(
        (name for name, text in _text_arguments(arguments) if any(file in task for file in _FILE_NAME.findall(text))),
        None,
    )


def find_copied_example(arguments: Mapping[str, Any], capability: ToolCapability, context: str) -> str | None:
    """The argument whose value is the example in its description, with a number in it that nobody has mentioned."""
    properties, context = properties_of(capability.schema_or_empty), _normalize(context)
    for name, text in _text_arguments(arguments):
        schema = properties.get(name)
        description = _normalize(str(schema.get("description", ""))) if isinstance(schema, dict) else ""
        value = _normalize(text)
        if any(map(str.isdigit, value)) and len(value) > 1 and value in description and value not in context:
            return name
    return None


def _text_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in arguments.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield name, str(value)


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


# Numbers that a model makes up, in a run or in a plan: they are neither in the question nor in a result. A number
# counts as known where it follows from a known one without a calculation: rounded, or as the share of a percentage.
# Numbers of one digit are not evidence, and a calculation may contain usual constants.

_WRITTEN_NUMBER = lazy_pattern(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?")
_CALCULATION = lazy_pattern(r"(?!\d+/\d+/\d+$)[\d\s.,()]*\d[\s)]*(?:[+*/^%×÷]|\s-\s)[\d\s.,()+\-*/^%×÷]*")
"""A text with an operator: a number alone is an argument like any other, and so is a date."""
_CONSTANTS: Final = (12.0, 24.0, 52.0, 60.0, 100.0, 180.0, 360.0, 365.0, 1000.0, 1024.0, 3600.0, math.pi, math.e)
"""Numbers that a calculation may contain whatever the question is."""


def find_made_up_number(text: str, evidence: str, constants: Sequence[float] = ()) -> str | None:
    """The first number of a text that does not come from the `evidence`: the question and the results."""
    numbers = [number for number in _read_numbers(text) if len(number) > 1]
    if not numbers:
        return None
    values = {float(number) for number in _read_numbers(evidence)}
    evidence_values = {
        *constants,
        *(other for value in values for other in (value, value / 100, 1 + value / 100, 1 - value / 100)),
    }
    rounded: dict[int, set[float]] = {}  # a result may have very many numbers: each is rounded once
    for number in numbers:
        digits = len(number.partition(".")[2])
        if digits not in rounded:
            rounded[digits] = {round(value, digits) for value in evidence_values}
        if float(number) not in rounded[digits] and not _is_written_out(float(number), evidence):
            return number
    return None


def is_calculation(parameters: Mapping[str, Any]) -> bool:
    """Whether an argument is a calculation: its result is not found out, but follows from what the model wrote."""
    return any(isinstance(value, str) and _CALCULATION.fullmatch(value) for value in parameters.values())


def find_made_up_operand(parameters: Mapping[str, Any], evidence: str) -> str | None:
    """The first made-up number in those arguments that are calculations. References to results are not numbers."""
    calculations = [value for value in parameters.values() if isinstance(value, str) and _CALCULATION.fullmatch(value)]
    return next(filter(None, (find_made_up_number(text, evidence, _CONSTANTS) for text in calculations)), None)


def _is_written_out(number: float, evidence: str) -> bool:
    """Whether a number is in the evidence as words: `twenty`, `二十`."""
    return any(span.value == number for span in find_numbers(evidence))


def _read_numbers(text: str) -> Iterator[str]:
    return (match.group().replace(",", "") for match in _WRITTEN_NUMBER.finditer(text))
