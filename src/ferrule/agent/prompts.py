"""What a model is told about its task, what has happened so far, and how to answer.

The prompts follow the language of the task unless one is named. What tools gave back stands in marked places, cut to
a length, so that it can be told from what we say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ferrule.agent.prompt_words import PromptWords, words_of
from ferrule.content import as_text, encode_json
from ferrule.describe.sentences import first_sentence, on_one_line, within
from ferrule.describe.tokens import estimate_tokens
from ferrule.memory.context import ExecutionContext
from ferrule.spec import ToolCapability, ToolSpec, parameters_of
from ferrule.validation.schema_walk import resolve

FAILURES_SHOWN: Final = 3
OBSERVATIONS_SHOWN: Final = 2
TOOLS_BUDGET: Final = 2000
"""Tokens for the list of tools."""
_OBSERVATION_LENGTH: Final = 800
_ERROR_LENGTH: Final = 200
_ARGUMENTS_LENGTH: Final = 160
_MOST_VALUES: Final = 10
_SWITCHES: Final = "tool_switches"

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_LATIN_WORD = re.compile(r"[A-Za-z][\w'-]*")
_CLOSING = re.compile(r"<\s*/\s*(observation)", re.IGNORECASE)
_NOT_THE_SPEAKER = re.compile(
    r"https?://\S{1,2000}|\"[^\"\n]{1,500}\"|“[^”\n]{1,500}”|「[^」\n]{1,500}」|`[^`\n]{1,500}`"
)


def language_of(text: str) -> str:
    """`zh` where at least half of what is said is Chinese, a character counting as a word; else `en`.

    Addresses and quotations do not count.
    """
    said = _NOT_THE_SPEAKER.sub(" ", text[:5000])
    han, words = len(_HAN.findall(said)), len(_LATIN_WORD.findall(said))
    foreign = len(_KANA_OR_HANGUL.findall(said))
    return "zh" if han and han >= words and han > foreign else "en"


# For models that decide by prompt


def contextual_tool_selection_prompt(context: ExecutionContext, *, language: str | None = None) -> str:
    """Asks for the next step and its tool, in the form of five lines."""
    words = _words(context, language)
    return _joined(
        words.chooses_tools,
        f"{words.task}: {context.task_description}",
        f"{words.status}: {_counts(context, words)}",
        _listed(words.failures, _failures(context, words), numbered=True),
        _observations(context, words.observations, OBSERVATIONS_SHOWN),
        _listed(words.patterns, _patterns(context, words)),
        _tools(context.available_tools, words),
        words.questions,
        words.line_form,
    )


def adaptive_execution_prompt(context: ExecutionContext, tool_id: str, *, language: str | None = None) -> str:
    """Asks how to use one tool, in the form of a JSON object."""
    words = _words(context, language)
    spec = next((spec for spec in context.available_tools if spec.tool_id == tool_id), None)
    return _joined(
        words.uses_tool.format(tool=tool_id),
        f"{words.task}: {context.task_description}\n{words.step}: {len(context.executed_steps) + 1}",
        _listed(words.actions, map(_action_line, spec.capabilities) if spec is not None else ()),
        _listed(words.problems_of_tool, _patterns(context, words, tool_id))
        or f"{words.problems_of_tool}: {words.none}",
        _observations(context, words.last_observation, 1) or f"{words.last_observation}: {words.none}",
        words.strategy,
        words.json_form_of_tool.format(tool=tool_id),
    )


def contextual_decision_prompt(context: ExecutionContext, *, language: str | None = None) -> str:
    """Asks what happens next, in the form of a JSON object."""
    words = _words(context, language)
    return _joined(
        words.decides,
        f"{words.task}: {context.task_description}",
        f"{words.status}: {_counts(context, words)}",
        _listed(words.failures_by_tool, _failures_by_tool(context, words)),
        _listed(words.failures, _failures(context, words), numbered=True),
        _observations(context, words.observations, OBSERVATIONS_SHOWN),
        _listed(words.patterns, _patterns(context, words)),
        _tools(context.available_tools, words),
        words.choices,
        words.principles,
        words.json_form,
    )


# For the loop of tool calls


def system_prompt(
    *, language: str = "en", finish_task: bool = False, ask_user: bool = False, instructions: str = ""
) -> str:
    """What a model that calls tools is told before anything else; `instructions` are the user's own."""
    words = words_of(language)
    offered = [words.finish_task] * finish_task + [words.ask_user] * ask_user
    return _joined("\n".join([words.system, *offered]), instructions.strip())


def failure_briefing(context: ExecutionContext, *, language: str | None = None) -> str:
    """A short reminder of what has failed; empty while nothing has."""
    if not context.failed_attempts:
        return ""
    words = _words(context, language)
    last = context.failed_attempts[-1]
    calls = dict.fromkeys(_call(attempt) for attempt in context.failed_attempts[-FAILURES_SHOWN:])
    said = [
        words.briefing.format(counts=_counts(context, words), failure=_failure(last, words)),
        words.briefing_calls.format(values="; ".join(calls)),
    ]
    for tool_id, patterns in _patterns_by_tool(context):
        if selectors := _values(patterns.get("failed_selectors"), words):
            said.append(words.briefing_selectors.format(tool=tool_id, values=selectors))
    return "\n".join(said)


def warnings_from_earlier_runs(warnings: Sequence[str], *, language: str = "en") -> str:
    """What other runs have learned the hard way; empty if there is nothing."""
    return _listed(words_of(language).warnings, map(on_one_line, warnings), colon=False)


# Pieces


def _words(context: ExecutionContext, language: str | None) -> PromptWords:
    return words_of(language or language_of(context.task_description))


def _joined(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section)


def _listed(heading: str, lines: Iterable[str], *, numbered: bool = False, colon: bool = True) -> str:
    marked = [f"{f'{at}.' if numbered else '-'} {line}" for at, line in enumerate(lines, 1)]
    return "\n".join([heading + (":" if colon else ""), *marked]) if marked else ""


def _counts(context: ExecutionContext, words: PromptWords) -> str:
    good = sum(bool(step.get("success")) for step in context.executed_steps)
    return words.counts.format(steps=len(context.executed_steps), good=good, bad=len(context.failed_attempts))


def _failures(context: ExecutionContext, words: PromptWords) -> Iterator[str]:
    for attempt in context.failed_attempts[-FAILURES_SHOWN:]:
        yield _failure(attempt, words)


def _failure(attempt: Mapping[str, Any], words: PromptWords) -> str:
    # In quotation marks: what a tool said must not pass for what we say.
    error = encode_json(within(on_one_line(str(attempt.get("error") or "")), _ERROR_LENGTH)).decode()
    return words.failure.format(call=_call(attempt), error=error)


def _call(attempt: Mapping[str, Any]) -> str:
    """`browser.click {"selector": …}`; the action is left out where it is only the tool's own name."""
    tool_id, action = str(attempt.get("tool_id")), attempt.get("action")
    name = f"{tool_id}.{action}" if action and action != tool_id else tool_id
    arguments = attempt.get("parameters")
    return f"{name} {_cut(as_text(arguments), _ARGUMENTS_LENGTH)}" if arguments else name


def _failures_by_tool(context: ExecutionContext, words: PromptWords) -> Iterator[str]:
    for tool_id in dict.fromkeys(attempt["tool_id"] for attempt in context.failed_attempts):
        yield words.failure_count.format(tool=tool_id, count=context.failures_of(tool_id))


def _observations(context: ExecutionContext, heading: str, most: int) -> str:
    shown = [_observation(text) for text in context.current_observations[-most:]]
    return "\n".join([f"{heading}:", *shown]) if shown else ""


def _observation(text: str) -> str:
    # A page that writes our closing mark must not get out of its place.
    said = _CLOSING.sub(r"<\\/\1", within(text.strip(), _OBSERVATION_LENGTH))
    return f"<observation>\n{said}\n</observation>"


def _patterns(context: ExecutionContext, words: PromptWords, only: str | None = None) -> Iterator[str]:
    for tool_id, patterns in _patterns_by_tool(context):
        if only is not None and tool_id != only:
            continue
        if selectors := _values(patterns.get("failed_selectors"), words):
            yield words.failed_selectors.format(tool=tool_id, values=selectors)
        if only is not None and (actions := _values(patterns.get("failed_actions"), words)):
            yield words.failed_actions.format(tool=tool_id, values=actions)
        for advice in _list(patterns.get("suggested_adjustments"))[-1:]:
            if isinstance(advice, dict) and (instead := _instead(advice)):
                reason = within(on_one_line(str(advice.get("reason") or "")), _ERROR_LENGTH)
                yield words.adjustment.format(tool=tool_id, values=instead, reason=reason).rstrip()
    for switch in _list(context.learned_patterns.get(_SWITCHES)):
        if isinstance(switch, dict) and only in (None, switch.get("from_tool")):
            others = words.comma.join(map(str, _list(switch.get("to_tools"))))
            yield words.switch.format(tool=switch.get("from_tool"), values=others or words.none)


def _patterns_by_tool(context: ExecutionContext) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool_id, patterns in context.learned_patterns.items():
        if tool_id != _SWITCHES and isinstance(patterns, dict):
            yield tool_id, patterns


def _instead(advice: Mapping[str, Any]) -> str:
    """What an adjustment changes."""
    before, after = advice.get("original_params"), advice.get("adjusted_params")
    if not isinstance(after, dict):
        return ""
    before = before if isinstance(before, dict) else {}
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return _cut(as_text(changed), _ARGUMENTS_LENGTH) if changed else ""


def _values(values: Any, words: PromptWords) -> str:
    shown = [_cut(as_text(value), _ARGUMENTS_LENGTH) for value in _list(values)[-_MOST_VALUES:]]
    return words.comma.join(shown)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tools(tools: Sequence[ToolSpec], words: PromptWords) -> str:
    """As many tools as the budget allows, a line each, and how many more there are."""
    lines: list[str] = []
    left = TOOLS_BUDGET
    for spec in tools:
        line = _tool_line(spec)
        left -= estimate_tokens(line)
        if left < 0 and lines:
            return f"{_listed(words.tools, lines)}\n{words.more_tools.format(count=len(tools) - len(lines))}"
        lines.append(line)
    return _listed(words.tools, lines) or f"{words.tools}: {words.none}"


def _tool_line(spec: ToolSpec) -> str:
    only = spec.capability()
    said = first_sentence(spec.description or (only.description if only is not None else ""))
    actions = [capability.name for capability in spec.capabilities]
    shown = [*actions[:_MOST_VALUES], *(["…"] if len(actions) > _MOST_VALUES else [])]
    name = f"{spec.tool_id} ({', '.join(shown)})" if len(actions) > 1 else spec.tool_id
    return f"{name}: {said}" if said else name


def _action_line(capability: ToolCapability) -> str:
    parameters = parameters_of(resolve(capability.schema, capability.schema))
    names = [parameter.name if parameter.required else f"{parameter.name}?" for parameter in parameters]
    said = first_sentence(capability.description)
    return f"{capability.name}({', '.join(names)})" + (f": {said}" if said else "")


def _cut(text: str, most: int) -> str:
    text = on_one_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
