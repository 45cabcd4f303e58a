"""Noticing values that a small model makes up instead of looking them up.

A model is asked once in a run, because the value may be right: if it makes the call again, the call is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.agent.run import Run
from ferrule.agent.toolbox import ResolvedCall, ToolOffer
from ferrule.core.content import encode_json
from ferrule.core.json_schema import properties_of
from ferrule.core.messages import text_of_message
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.texts.language import detect_language
from ferrule.texts.prompts import prompt_texts

_MAX_SHOWN_TOOLS: Final = 5
_PLACEHOLDER: Final = "…"
"""What a model is shown in place of the value that it made up."""
_NUMBER = lazy_pattern(r"\d{2,}")
_FILE_NAME = lazy_pattern(r"[\w-]+\.[A-Za-z]\w{0,4}\b")
_EMAIL = lazy_pattern(r"[\w.+-]+@[\w-]+\.[\w.]+")
_BLANK_TO_FILL = lazy_pattern(r"\[[A-Z][A-Za-z ]{2,40}\]|<[A-Za-z]+[ _][A-Za-z_ ]{1,40}>")
_READING_NAME = lazy_pattern(
    r"(?:calc|calculate|calculator|check|compute|convert|count|fetch|find|get|list|look|lookup|query|read|search|show)"
    r"(?:[_\W]|$)",
    re.IGNORECASE,
)
"""Names of tools that look something up or compute it; for tools that do not say what they change."""


class MadeUpValueCheck:
    """Asks a model that writes its calls as text, as small ones do, about a value that it cannot know."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._has_asked = False

    def question(self, resolved: ResolvedCall, offer: ToolOffer) -> str | None:
        """What to tell the model instead of making its call; None if the call is to be made."""
        run, arguments = self._run, resolved.call.arguments
        if resolved.target is None or not run.call_sources or resolved.tool_id in CONTROL_TOOLS:
            return None
        texts = prompt_texts(detect_language(run.task))
        if (name := _find_placeholder(arguments)) is not None:
            return texts.placeholder.format(name=name)
        if self._has_asked:
            return None
        context = "\n".join(map(text_of_message, run.messages[:-1]))
        if (name := find_copied_example(arguments, resolved.target[1], context)) is not None:
            question = texts.copied_example.format(name=name)
        else:
            tools = [name for name, action in offer.actions.items() if name not in CONTROL_TOOLS and _reads(*action)]
            if not tools or _reads(*resolved.target) or any(step.is_success for step in run.steps):
                return None
            if (name := find_made_up_value(arguments, context)) is None:
                return None
            question = texts.made_up.format(name=name, tools=texts.comma.join(tools[:_MAX_SHOWN_TOOLS]))
        self._has_asked = True
        if resolved.call.id in run.call_sources:  # a model that sees its value again writes it again
            value = encode_json(str(arguments[name])).decode()[1:-1]
            run.call_sources[resolved.call.id] = run.call_sources[resolved.call.id].replace(value, _PLACEHOLDER)
        return question


def _find_placeholder(arguments: Mapping[str, Any]) -> str | None:
    """The argument that a model has copied from a call whose value was left out."""
    return next((name for name, text in _text_arguments(arguments) if text.strip() == _PLACEHOLDER), None)


def _reads(tool: Tool, capability: ToolCapability) -> bool:
    """Whether an action only looks something up: it says so, or it says nothing and has such a name."""
    effects = tool.spec.effects_of(capability)
    return effects.read_only or (effects == Effects() and _READING_NAME.match(capability.name) is not None)


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
