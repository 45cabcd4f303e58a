"""Parsing the decisions of models that decide by prompt: what to do next, as written in their text.

The prompts (see `ferrule.agent.prompts`) ask for one of two forms: a JSON object, or lines such as
`ACTION_TYPE: replan`. Both are found inside any surrounding text. If a text has several decisions, the first counts,
because models go on to write steps they only imagine. Values are parsed as literals; nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from ferrule.agent.answer import ReadableFields
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ModelError
from ferrule.parsing.literals import LiteralReader, parse_literal
from ferrule.parsing.text import SourceText

ActionType: TypeAlias = Literal["execute_tool", "replan", "switch_tool", "complete"]

MAX_REPLY_LENGTH: Final = 200_000
_MAX_OBJECTS: Final = 50
_MAX_EXCERPT_LENGTH: Final = 200
_EXPECTED_FORM: Final = "Reply with a JSON object that has action_type, tool_id, action, parameters and reasoning."

_ACTION_TYPES: Final = {
    **dict.fromkeys(("executetool", "execute", "执行工具", "执行"), "execute_tool"),
    **dict.fromkeys(("replan", "重新规划"), "replan"),
    **dict.fromkeys(("switchtool", "switch", "切换工具"), "switch_tool"),
    **dict.fromkeys(("complete", "completed", "完成", "任务完成"), "complete"),
}
_STANDARD_KEYS: Final = {
    **dict.fromkeys(("actiontype", "动作类型", "行动类型", "操作类型"), "action_type"),
    **dict.fromkeys(("toolid", "selectedtool", "tool", "toolname", "工具", "工具id", "选择的工具"), "tool_id"),
    **dict.fromkeys(("action", "动作", "操作"), "action"),
    **dict.fromkeys(("parameters", "params", "arguments", "args", "参数"), "parameters"),
    **dict.fromkeys(("reasoning", "reason", "thought", "理由", "原因", "决策理由"), "reasoning"),
}
_FIELD_LINE = lazy_pattern(
    r"^[ \t>*#-]{0,8}`?\**(?P<key>ACTION[_ ]?TYPE|SELECTED[_ ]?TOOL|TOOL[_ ]?ID|TOOL|ACTION|PARAMETERS|PARAMS|ARGUMENTS"
    r"|REASONING|REASON|动作类型|行动类型|操作类型|选择的工具|工具ID|工具|动作|操作|参数|决策理由|理由|原因)"
    r"\**`?[ \t]*[:：]\**",
    re.I | re.M,
)
_FENCE = lazy_pattern(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$", re.M)
_PAIR = lazy_pattern(
    r"\s*(?P<name>[^\W\d][\w.-]*)\s*[=:：]\s*(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^,，;；\n\"']+)\s*(?:[,，;；\n]|\Z)"
)
_EMPTY_VALUES: Final = frozenset({"", "none", "null", "n/a", "na", "nil", "-", "无", "没有", "空"})


@dataclass(slots=True)
class AgentDecision(ReadableFields):
    """The next action that a model has decided on. Fields can also be read as `decision["tool_id"]`."""

    action_type: ActionType
    tool_id: str | None = None
    """Always set for `execute_tool`."""
    action: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""

    @classmethod
    def of(cls, decision: AgentDecision | Mapping[str, Any]) -> AgentDecision:
        """Return a decision, which may be an object as models write it."""
        return decision if isinstance(decision, AgentDecision) else _build_decision(_standardize_keys(decision))


def parse_decision(text: str) -> AgentDecision:
    """Return the decision in a model's reply. ModelError with a message that tells the model what is missing."""
    text = text[:MAX_REPLY_LENGTH].translate({ord("｛"): "{", ord("｝"): "}"})
    objects, lines = list(_find_objects(text)), _parse_line_form(text)
    # The parameters of the line form may be an object with a `tool` or an `action` of its own: objects come last.
    for fields in (*(item for item in objects if "action_type" in item), lines, *objects):
        if "action_type" in fields or {"tool_id", "parameters"} <= fields.keys():
            return _build_decision(fields)
    excerpt = " ".join(text.split())[:_MAX_EXCERPT_LENGTH]
    raise ModelError(f"There is no decision in the reply {excerpt!r}. {_EXPECTED_FORM}")


def _build_decision(fields: Mapping[str, Any]) -> AgentDecision:
    tool_id = _clean_name(fields.get("tool_id"))
    value = fields.get("action_type", "execute_tool")
    action_type = _ACTION_TYPES.get(_normalize_key(value))
    if action_type is None:
        raise ModelError(f"{value!r} is not an action_type: write one of execute_tool, replan, switch_tool, complete.")
    if action_type == "execute_tool" and tool_id is None:
        raise ModelError("The decision is execute_tool but names no tool: write its id as tool_id.")
    return AgentDecision(
        action_type=cast(ActionType, action_type),
        tool_id=tool_id,
        action=_clean_name(fields.get("action")),
        parameters=_parse_parameters(fields.get("parameters")),
        reasoning=str(fields.get("reasoning") or "").strip(),
    )


def _find_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a text, with the keys of AgentDecision."""
    whole = SourceText(text)
    at = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if at < 0:
            return
        reader = LiteralReader(whole)
        try:
            value, end = reader.read_value(at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict) and not reader.unclosed:  # an object that was cut off is not a decision
                objects = [value, *(inner for inner in value.values() if isinstance(inner, dict))]
                yield from map(_standardize_keys, objects)
        at = text.find("{", end)


def _standardize_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items():
        if (name := _STANDARD_KEYS.get(_normalize_key(key))) is not None:
            fields.setdefault(name, item)
    return fields


def _parse_line_form(text: str) -> dict[str, str]:
    """Return the fields of the line form, up to the first repeated key."""
    plain = _FENCE.sub("", text)
    lines = list(_FIELD_LINE.finditer(plain))
    fields: dict[str, str] = {}
    for at, line in enumerate(lines):
        name = _STANDARD_KEYS[_normalize_key(line["key"])]
        if name in fields:
            break
        end = lines[at + 1].start() if at + 1 < len(lines) else len(plain)
        fields[name] = plain[line.end() : end].strip()
    return fields


def _clean_name(value: Any) -> str | None:
    """Return a name without quotes and brackets around it, or None if the model wrote `none` or similar."""
    name = str(value or "").strip().strip("[]<>`*\"'“”‘’").strip()
    return None if name.casefold() in _EMPTY_VALUES else name


def _parse_parameters(raw: Any) -> dict[str, Any]:
    value: Any = raw
    text = str(raw)
    if not isinstance(raw, (dict, list)):
        text = str(raw or "").strip().strip("`").strip()
        if text.strip("[](){}").strip().casefold() in _EMPTY_VALUES:
            return {}
        try:
            value = parse_literal(text)
        except ValueError:
            value = _parse_pairs(text.strip("[]") if text.startswith("[") and text.endswith("]") else text)
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):  # the prompt's `[parameters]`
        value = {name: item for part in value for name, item in part.items()}
    if not isinstance(value, dict):
        raise ModelError(
            f"The parameters {text[:_MAX_EXCERPT_LENGTH]!r} cannot be read: write them as one JSON object."
        )
    return value


def _parse_pairs(text: str) -> dict[str, Any] | None:
    """Parse `name=value, other=value`; None if the text contains anything else."""
    pairs: dict[str, Any] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair["name"] in pairs:
            return None
        value = pair["value"].strip()
        try:
            pairs[pair["name"]] = parse_literal(value)
        except ValueError:
            pairs[pair["name"]] = value
        at = pair.end()
    return pairs


def _normalize_key(key: Any) -> str:
    return re.sub(r"[\s_\-\[\]`*\"'“”.。]", "", str(key)).casefold()
