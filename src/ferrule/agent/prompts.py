"""Prompts that state a task, what has happened so far, and how to reply.

They are in the language of the task unless another one is given. Tool results are marked and limited in length, so that
a model can tell them from instructions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.content import as_text, encode_json
from ferrule.core.json_schema import resolve_schema
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Tool, ToolCapability, ToolSpec, parse_parameters
from ferrule.memory.context import ExecutionContext
from ferrule.models.offline.values import significant_terms
from ferrule.texts.error_messages import translate_error
from ferrule.texts.fixed_replies import DENIED, SETUP_SUGGESTIONS, STOP_REPORT
from ferrule.texts.language import detect_language
from ferrule.texts.numbers import find_numbers
from ferrule.texts.phrases import DATA_FILE, find_tool_phrases
from ferrule.texts.prompts import PromptTexts, prompt_texts
from ferrule.texts.shorten import estimate_tokens, first_sentence, shorten, single_line

MAX_FAILURES: Final = 3
MAX_OBSERVATIONS: Final = 2
MAX_TOOLS_TOKENS: Final = 2000
"""Tokens for the list of tools."""
MAX_SCHEMAS_TOKENS: Final = 4000
"""Tokens for the tools that are listed with their schemas."""
_OBSERVATION_LENGTH: Final = 800
_ERROR_LENGTH: Final = 200
_ARGUMENTS_LENGTH: Final = 160
_MAX_VALUES: Final = 10
_TOOL_SWITCHES: Final = "tool_switches"

_CLOSING_TAG = lazy_pattern(r"<\s*/\s*(observation)", re.IGNORECASE)
_ESCAPED_TAG = r"<\\/\1"


# For models that decide by prompt


def contextual_tool_selection_prompt(context: ExecutionContext, *, language: str | None = None) -> str:
    """Ask for the next step and its tool, as five lines."""
    texts = _choose_texts(context, language)
    return _join_sections(
        texts.chooses_tools,
        f"{texts.task}: {context.task_description}",
        f"{texts.status}: {_format_counts(context, texts)}",
        _format_list(texts.failures, _failure_lines(context, texts), numbered=True),
        _format_observations(context, texts.observations, MAX_OBSERVATIONS),
        _format_list(texts.patterns, _pattern_lines(context, texts)),
        _format_tools(context.available_tools, texts),
        texts.questions,
        texts.line_form,
    )


def adaptive_execution_prompt(context: ExecutionContext, tool_id: str, *, language: str | None = None) -> str:
    """Ask how to use one tool, as a JSON object."""
    texts = _choose_texts(context, language)
    spec = next((spec for spec in context.available_tools if spec.tool_id == tool_id), None)
    return _join_sections(
        texts.uses_tool.format(tool=tool_id),
        f"{texts.task}: {context.task_description}\n{texts.step}: {len(context.executed_steps) + 1}",
        _format_list(texts.actions, map(_action_line, spec.capabilities) if spec is not None else ()),
        _format_list(texts.problems_of_tool, _pattern_lines(context, texts, tool_id))
        or f"{texts.problems_of_tool}: {texts.none}",
        _format_observations(context, texts.last_observation, 1) or f"{texts.last_observation}: {texts.none}",
        texts.strategy,
        texts.json_form_of_tool.format(tool=tool_id),
    )


def contextual_decision_prompt(
    context: ExecutionContext,
    *,
    language: str | None = None,
    status: str | None = None,
    failures: str | None = None,
    learned: str | None = None,
) -> str:
    """Ask for the next action, as a JSON object. `status`, `failures` and `learned` replace these parts."""
    texts = _choose_texts(context, language)
    return _join_sections(
        texts.decides,
        f"{texts.task}: {context.task_description}",
        f"{texts.status}: {execution_status(context, language=language) if status is None else status}",
        failure_summary(context, language=language) if failures is None else failures,
        _format_observations(context, texts.observations, MAX_OBSERVATIONS),
        learning_summary(context, language=language) if learned is None else learned,
        _format_tools(context.available_tools, texts, with_schemas=True),
        texts.choices,
        texts.principles,
        texts.json_form,
    )


def execution_status(context: ExecutionContext, *, language: str | None = None) -> str:
    """Return how many steps there were, and how they ended."""
    return _format_counts(context, _choose_texts(context, language))


def failure_summary(context: ExecutionContext, *, language: str | None = None) -> str:
    """Return the failures by tool, and the latest ones, empty if there are none."""
    texts = _choose_texts(context, language)
    tools = dict.fromkeys(attempt["tool_id"] for attempt in context.failed_attempts)
    counts = [texts.failure_count.format(tool=tool_id, count=context.count_failures(tool_id)) for tool_id in tools]
    return _join_sections(
        _format_list(texts.failures_by_tool, counts),
        _format_list(texts.failures, _failure_lines(context, texts), numbered=True),
    )


def learning_summary(context: ExecutionContext, *, language: str | None = None) -> str:
    """Return what is known to go wrong, and what to try instead, empty if nothing is."""
    texts = _choose_texts(context, language)
    return _format_list(texts.patterns, _pattern_lines(context, texts))


def format_tools_for_prompt(tools: Sequence[ToolSpec], *, language: str = "en") -> str:
    """Return the tools with their actions, one line each."""
    return _format_tools(tools, prompt_texts(language))


# For the loop of tool calls


def system_prompt(
    *, language: str = "en", finish_task: bool = False, ask_user: bool = False, instructions: str = ""
) -> str:
    """Return the system message for a model that calls tools. `instructions` are the user's own."""
    texts = prompt_texts(language)
    control = [texts.finish_task] * finish_task + [texts.ask_user] * ask_user
    return _join_sections("\n".join([texts.system, *control]), instructions.strip())


def short_failure_summary(context: ExecutionContext, *, language: str | None = None) -> str:
    """Return a short summary of the failures so far, empty if there are none."""
    if not context.failed_attempts:
        return ""
    texts = _choose_texts(context, language)
    last = context.failed_attempts[-1]
    calls = dict.fromkeys(_format_call(attempt) for attempt in context.failed_attempts[-MAX_FAILURES:])
    lines = [
        texts.short_summary.format(counts=_format_counts(context, texts), failure=_format_failure(last, texts)),
        texts.short_summary_calls.format(values="; ".join(calls)),
    ]
    for tool_id, patterns in _patterns_by_tool(context):
        if selectors := _format_values(patterns.get("failed_selectors"), texts):
            lines.append(texts.short_summary_selectors.format(tool=tool_id, values=selectors))
    return "\n".join(lines)


def warnings_from_earlier_runs(warnings: Sequence[str], *, language: str = "en") -> str:
    """Return a list of failures from earlier runs, empty if there are none."""
    return _format_list(prompt_texts(language).warnings, map(single_line, warnings), colon=False)


# Pieces


def _choose_texts(context: ExecutionContext, language: str | None) -> PromptTexts:
    return prompt_texts(language or detect_language(context.task_description))


def _join_sections(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section)


def _format_list(heading: str, lines: Iterable[str], *, numbered: bool = False, colon: bool = True) -> str:
    marked = [f"{f'{at}.' if numbered else '-'} {line}" for at, line in enumerate(lines, 1)]
    return "\n".join([heading + (":" if colon else ""), *marked]) if marked else ""


def _format_counts(context: ExecutionContext, texts: PromptTexts) -> str:
    good = sum(bool(step.get("success")) for step in context.executed_steps)
    return texts.counts.format(steps=len(context.executed_steps), good=good, bad=len(context.failed_attempts))


def _failure_lines(context: ExecutionContext, texts: PromptTexts) -> Iterator[str]:
    for attempt in context.failed_attempts[-MAX_FAILURES:]:
        yield _format_failure(attempt, texts)


def _format_failure(attempt: Mapping[str, Any], texts: PromptTexts) -> str:
    # In quotation marks, so that a model does not take text from a tool as an instruction.
    error = encode_json(shorten(single_line(str(attempt.get("error") or "")), _ERROR_LENGTH)).decode()
    return texts.failure.format(call=_format_call(attempt), error=error)


def _format_call(attempt: Mapping[str, Any]) -> str:
    """`browser.click {"selector": …}`; the action is omitted if it has the same name as the tool."""
    tool_id, action = str(attempt.get("tool_id")), attempt.get("action")
    name = f"{tool_id}.{action}" if action and action != tool_id else tool_id
    arguments = attempt.get("parameters")
    return f"{name} {_cut_line(as_text(arguments), _ARGUMENTS_LENGTH)}" if arguments else name


def _format_observations(context: ExecutionContext, heading: str, limit: int) -> str:
    # A page that contains the closing tag must not end the marked part.
    texts = (shorten(text.strip(), _OBSERVATION_LENGTH) for text in context.observation_texts[-limit:])
    observations = [f"<observation>\n{_CLOSING_TAG.sub(_ESCAPED_TAG, text)}\n</observation>" for text in texts]
    return "\n".join([f"{heading}:", *observations]) if observations else ""


def _pattern_lines(context: ExecutionContext, texts: PromptTexts, only: str | None = None) -> Iterator[str]:
    for tool_id, patterns in _patterns_by_tool(context):
        if only is not None and tool_id != only:
            continue
        if selectors := _format_values(patterns.get("failed_selectors"), texts):
            yield texts.failed_selectors.format(tool=tool_id, values=selectors)
        if only is not None and (actions := _format_values(patterns.get("failed_actions"), texts)):
            yield texts.failed_actions.format(tool=tool_id, values=actions)
        for advice in _as_list(patterns.get("suggested_adjustments"))[-1:]:
            before, after = advice.get("original_params") or {}, advice.get("adjusted_params") or {}
            if changed := {name: value for name, value in after.items() if name not in before or before[name] != value}:
                instead = _cut_line(as_text(changed), _ARGUMENTS_LENGTH)
                reason = shorten(single_line(str(advice.get("reason") or "")), _ERROR_LENGTH)
                yield texts.adjustment.format(tool=tool_id, values=instead, reason=reason).rstrip()
    for switch in _as_list(context.learned_patterns.get(_TOOL_SWITCHES)):
        if isinstance(switch, dict) and only in (None, switch.get("from_tool")):
            others = texts.comma.join(map(str, _as_list(switch.get("to_tools"))))
            yield texts.switch.format(tool=switch.get("from_tool"), values=others or texts.none)


def _patterns_by_tool(context: ExecutionContext) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool_id, patterns in context.learned_patterns.items():
        if tool_id != _TOOL_SWITCHES and isinstance(patterns, dict):
            yield tool_id, patterns


def _format_values(values: Any, texts: PromptTexts) -> str:
    cut = [_cut_line(as_text(value), _ARGUMENTS_LENGTH) for value in _as_list(values)[-_MAX_VALUES:]]
    return texts.comma.join(cut)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _format_tools(tools: Sequence[ToolSpec], texts: PromptTexts, *, with_schemas: bool = False) -> str:
    """Return one line for each tool that fits the budget, and the number of the others.

    With schemas, each tool that fits is followed by its actions, and the others by one line each.
    """
    lines: list[str] = []
    budget = MAX_SCHEMAS_TOKENS if with_schemas else MAX_TOOLS_TOKENS
    for at, spec in enumerate(tools):
        line = _tool_line(spec)
        for each in spec.capabilities if with_schemas else ():
            line += f"\n  {_action_line(each)} {encode_json(each.schema).decode()}"
        budget -= estimate_tokens(line)
        if budget < 0 and lines:
            more = texts.more_tools.format(count=len(tools) - at)
            more = _format_tools(tools[at:], texts) if with_schemas else more
            return f"{_format_list(texts.tools, lines)}\n{more}"
        lines.append(line)
    return _format_list(texts.tools, lines) or f"{texts.tools}: {texts.none}"


def _tool_line(spec: ToolSpec) -> str:
    only = spec.capability()
    description = first_sentence(spec.description or (only.description if only is not None else ""))
    actions = [capability.name for capability in spec.capabilities]
    names = [*actions[:_MAX_VALUES], *(["…"] if len(actions) > _MAX_VALUES else [])]
    name = f"{spec.tool_id} ({', '.join(names)})" if actions != [spec.tool_id] and actions else spec.tool_id
    return f"{name}: {description}" if description else name


def _action_line(capability: ToolCapability) -> str:
    parameters = parse_parameters(resolve_schema(capability.schema, capability.schema))
    names = [parameter.name if parameter.required else f"{parameter.name}?" for parameter in parameters]
    description = first_sentence(capability.description)
    return f"{capability.name}({', '.join(names)})" + (f": {description}" if description else "")


def _cut_line(text: str, limit: int) -> str:
    text = single_line(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# The report of a run that stopped without an answer

MAX_REPORTED_STEPS: Final = 8
_MAX_CALL_LENGTH: Final = 160
_MAX_RESULT_LENGTH: Final = 500


def explain_stop(context: ExecutionContext, reason: str, *, language: str = "en") -> str:
    """Return why a run stopped, what it tried, and its last result."""
    texts, steps = STOP_REPORT[language], context.executed_steps
    stopped = texts["stopped"].format(reason=translate_error(reason, language).rstrip(".。"))
    if not steps:
        return f"{stopped} {texts['nothing']}"
    lines = [stopped, texts["tried"]]
    if len(steps) > MAX_REPORTED_STEPS:
        lines.append(f"- {texts['more'].format(count=len(steps) - MAX_REPORTED_STEPS)}")
    for step in steps[-MAX_REPORTED_STEPS:]:
        call = shorten(f"{step['tool_id']} {as_text(step['parameters'])}", _MAX_CALL_LENGTH)
        error = shorten(single_line(translate_error(str(step["result"]), language)), _MAX_CALL_LENGTH)
        lines.append("- " + texts["good" if step["success"] else "bad"].format(call=call, error=error))
    if context.current_observations:
        last = context.observation_texts[-1].strip()
        lines.append(texts["found"].format(text=shorten(last, _MAX_RESULT_LENGTH)))
    return "\n".join(lines)


_SETTING = lazy_pattern(
    r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|\[tools(?:\.[\w.<>]+)?\](?: \w+ = \"[^\"]*\")?|pip install '[^']+'"
)
"""Environment variables, settings of ferrule.toml and packages, in the text that says what a tool needs."""
_FACT_QUESTION = lazy_pattern(
    r"(?:who|when|where|which|why|what|whats|how|is|are|was|did|does|latest|news|weather)\b|.*(?:谁|什么|哪|几|多少|吗|怎么|天气|新闻)",
    re.IGNORECASE,
)
_ASKS_A_MODEL: Final = "llm"
_SEARCHES_THE_WEB: Final = frozenset({"search", "web"})


def suggest_missing_setup(question: str, waiting: Iterable[Tool]) -> str:
    """Return what could answer a question that no tool fits: a tool that is not set up, or a language model."""
    texts, words = SETUP_SUGGESTIONS[detect_language(question)], significant_terms(question)
    matches = {}
    for tool in (tool for tool in waiting if tool.needs):
        text = f"{tool.id} {' '.join(tool.spec.tags)} {first_sentence(tool.spec.description)}"
        matches[tool] = _count_matches(words, {*extract_terms(text)})
    actions = [action.partition("__")[0] for action, *_ in find_tool_phrases(question)]
    table = DATA_FILE.search(question)
    best = next((t for t in matches if t.id in actions or (table and table[1].lower() in t.spec.tags)), None)
    is_certain = best is not None
    best = best or max(matches, key=lambda tool: (matches[tool], -len(tool.id)), default=None)
    if best is None or not (matches[best] or is_certain):
        is_calculation = "%" in question or len(find_numbers(question)) > 1
        asks_for_fact = not (is_calculation or table) and _FACT_QUESTION.match(question.strip()) is not None
        searching = (tool for tool in matches if _SEARCHES_THE_WEB.issubset(tool.spec.tags))
        best = min(searching, key=lambda tool: len(tool.id), default=None) if asks_for_fact else None
    settings = list(dict.fromkeys(_SETTING.findall(best.needs))) if best is not None else []
    if best is None or not settings or _ASKS_A_MODEL in best.spec.tags:
        return texts["model"] + texts["setting"]
    names = [texts["file"].format(section=name) if name.startswith("[") else name for name in reversed(settings)]
    setting = texts["or"].join(names)
    setting = setting if setting.startswith("pip ") else texts["set"].format(setting=setting)
    return texts["tool"].format(tool=best.id, setting=setting) + texts["setting"]


def explain_denial(question: str, denied: Iterable[tuple[Tool, ToolCapability, str]]) -> str | None:
    """Say that the policy forbids what a question asks for, and why. Return None if it does not."""
    words = significant_terms(question)
    best, sentence = 0, None
    for tool, capability, reason in denied:
        description = first_sentence(capability.description or tool.spec.description)
        count = _count_matches(words, {*extract_terms(f"{tool.id} {capability.name} {description}")})
        if count > best:
            step, name = shorten(single_line(question), _MAX_CALL_LENGTH), tool.spec.model_name(capability)
            best = count
            sentence = DENIED[detect_language(question)].format(step=step, tool=name, reason=reason).strip()
    return sentence


def _count_matches(words: Sequence[str], terms: Collection[str]) -> int:
    """Count the words that ask for a tool with these terms. One alone must be the first, unlike in `book a table`."""
    count = len({word for word in words if word in terms})
    return count if count > 1 or (words and words[0] in terms) else 0
