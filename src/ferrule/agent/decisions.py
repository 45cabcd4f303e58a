"""Decisions of models that decide by prompt: what to do next, read from the text they wrote.

Two forms are asked for (see `ferrule.agent.prompts`): a JSON object, and lines such as `ACTION_TYPE: replan`. Both are
read with whatever stands around them. Where a text holds several decisions the first one counts: what models write
behind it are steps they imagine. Values are read as literals, nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from ferrule.errors import ModelError
from ferrule.parsing.literals import Literals, read_whole
from ferrule.parsing.text import Text

ActionType: TypeAlias = Literal["execute_tool", "replan", "switch_tool", "complete"]

LONGEST_ANSWER: Final = 200_000
_MOST_OBJECTS: Final = 50
_SHOWN: Final = 200
_FORMS: Final = "Answer with a JSON object that has action_type, tool_id, action, parameters and reasoning."

_ACTION_TYPES: Final = {
    **dict.fromkeys(("executetool", "execute", "执行工具", "执行"), "execute_tool"),
    **dict.fromkeys(("replan", "重新规划"), "replan"),
    **dict.fromkeys(("switchtool", "switch", "切换工具"), "switch_tool"),
    **dict.fromkeys(("complete", "completed", "完成", "任务完成"), "complete"),
}
_KEYS: Final = {
    **dict.fromkeys(("actiontype", "动作类型", "行动类型", "操作类型"), "action_type"),
    **dict.fromkeys(("toolid", "selectedtool", "tool", "toolname", "工具", "工具id", "选择的工具"), "tool_id"),
    **dict.fromkeys(("action", "动作", "操作"), "action"),
    **dict.fromkeys(("parameters", "params", "arguments", "args", "参数"), "parameters"),
    **dict.fromkeys(("reasoning", "reason", "thought", "理由", "原因", "决策理由"), "reasoning"),
}
_LINE = re.compile(
    r"^[ \t>*#-]{0,8}`?\**(?P<key>ACTION[_ ]?TYPE|SELECTED[_ ]?TOOL|TOOL[_ ]?ID|TOOL|ACTION|PARAMETERS|PARAMS|ARGUMENTS"
    r"|REASONING|REASON|动作类型|行动类型|操作类型|选择的工具|工具ID|工具|动作|操作|参数|决策理由|理由|原因)"
    r"\**`?[ \t]*[:：]\**",
    re.I | re.M,
)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$", re.M)
_PAIR = re.compile(
    r"\s*(?P<name>[^\W\d][\w.-]*)\s*[=:：]\s*(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^,，;；\n\"']+)\s*(?:[,，;；\n]|\Z)"
)
_NOTHING: Final = frozenset({"", "none", "null", "n/a", "na", "nil", "-", "无", "没有", "空"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDecision:
    """What a model wants to happen next."""

    action_type: ActionType
    tool_id: str | None = None
    """Always there for `execute_tool`."""
    action: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""


def parse_decision(text: str) -> AgentDecision:
    """The decision in a model's answer; ModelError says what is missing, in words the model can act on."""
    text = text[:LONGEST_ANSWER].translate({ord("｛"): "{", ord("｝"): "}"})
    objects, lines = list(_objects_in(text)), _lines_in(text)
    # What lines name as parameters may be an object with a `tool` or an `action` of its own: it comes last.
    for said in (*(one for one in objects if "action_type" in one), lines, *objects):
        if "action_type" in said or {"tool_id", "parameters"} <= said.keys():
            return _decision(said)
    shown = " ".join(text.split())[:_SHOWN]
    raise ModelError(f"There is no decision in the answer {shown!r}. {_FORMS}")


def _decision(said: Mapping[str, Any]) -> AgentDecision:
    tool_id = _name(said.get("tool_id"))
    written = said.get("action_type", "execute_tool")
    action_type = _ACTION_TYPES.get(_folded(written))
    if action_type is None:
        raise ModelError(f"{written!r} is no action_type: write one of execute_tool, replan, switch_tool, complete.")
    if action_type == "execute_tool" and tool_id is None:
        raise ModelError("The decision is execute_tool but names no tool: write its id as tool_id.")
    return AgentDecision(
        action_type=cast(ActionType, action_type),
        tool_id=tool_id,
        action=_name(said.get("action")),
        parameters=_parameters(said.get("parameters")),
        reasoning=str(said.get("reasoning") or "").strip(),
    )


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The objects written in a text, with their keys as we name them."""
    whole = Text(text)
    at = text.find("{")
    for _ in range(_MOST_OBJECTS):
        if at < 0:
            return
        reader = Literals(whole)
        try:
            value, end = reader.value(at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict) and not reader.forced:  # what was cut off decides nothing
                yield from map(_with_our_keys, (value, *filter(_is_object, value.values())))
        at = text.find("{", end)


def _with_our_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, item in value.items():
        if (name := _KEYS.get(_folded(key))) is not None:
            known.setdefault(name, item)
    return known


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _lines_in(text: str) -> dict[str, str]:
    """What the lines of the other form say, up to where a key comes again."""
    plain = _FENCE.sub("", text)
    lines = list(_LINE.finditer(plain))
    said: dict[str, str] = {}
    for at, line in enumerate(lines):
        name = _KEYS[_folded(line["key"])]
        if name in said:
            break
        end = lines[at + 1].start() if at + 1 < len(lines) else len(plain)
        said[name] = plain[line.end() : end].strip()
    return said


def _name(said: Any) -> str | None:
    """A name without what models put around it; None where they wrote that there is none."""
    name = str(said or "").strip().strip("[]<>`*\"'“”‘’").strip()
    return None if name.casefold() in _NOTHING else name


def _parameters(said: Any) -> dict[str, Any]:
    if isinstance(said, dict):
        return said
    text = str(said or "").strip().strip("`").strip()
    if text.strip("[](){}").strip().casefold() in _NOTHING:
        return {}
    try:
        value = read_whole(text)
    except ValueError:
        value = _pairs(text)
    if not isinstance(value, dict):
        raise ModelError(f"The parameters {text[:_SHOWN]!r} cannot be read: write them as one JSON object.")
    return value


def _pairs(text: str) -> dict[str, Any] | None:
    """`name=value, other=value`; None unless that is all there is."""
    pairs: dict[str, Any] = {}
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None or found["name"] in pairs:
            return None
        pairs[found["name"]] = _scalar(found["value"].strip())
        at = found.end()
    return pairs


def _scalar(text: str) -> Any:
    try:
        return read_whole(text)
    except ValueError:
        return text


def _folded(key: Any) -> str:
    return re.sub(r"[\s_\-\[\]`*\"'“”.。]", "", str(key)).casefold()
