"""The places in a text where something other than prose may begin, and who reads on from there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ferrule.parsing import blocks, react, tagged, xml_calls
from ferrule.parsing.found import Found
from ferrule.parsing.known import KnownTools
from ferrule.parsing.pythonic import NAME
from ferrule.parsing.text import Text

_ANALYSIS = r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>"
_END_OF_ANALYSIS = re.compile(r"<\|end\|>|(?=<\|start\|>|<\|channel\|>)")
_THINKING = r"<(?:seed:)?(?:think|thinking|thought|reasoning)>|<\|START_THINKING\|>|\[THINK\]|◁think▷"
_THOUGHT = r"</(?:seed:)?(?:think|thinking|thought|reasoning)>|<\|END_THINKING\|>|\[/THINK\]|◁/think▷"
END_OF_THOUGHT = re.compile(_THOUGHT)
_WRAPPER = (
    r"</?(?:tool_calls?|(?:dots_)?function_calls?|(?:longcat_|seed:|minimax:)tool_call|TOOLCALL|｜DSML｜\w+)>"
    r"|</?(?:steptml:)?(?:invoke|function)>"
)
_TOKEN = (
    r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)[ \t]*<\|message\|>"
    r"|<｜tool_call_begin｜>function<｜tool_sep｜>|<\|[A-Za-z_]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|</?co(?::[^<>\n]{0,80})?>"
)

# Found fast: a character that can begin something, or the start of a ReAct line.
_COARSE = re.compile(
    r"<(?=[A-Za-z/|｜])|\[(?=\s*+[\w{/])|\{(?=\s*+[\"'“\w])|[`~◁]|\bfunctools\["
    rf"|(?<![\w./\\-]){NAME}[ \t]?\("
    r"|^[ \t>*#]*(?:Action|Final[ \t]Answer)",
    re.MULTILINE,
)
_FINE = re.compile(
    rf"(?P<analysis>{_ANALYSIS})|(?P<thinking>{_THINKING})|(?P<thought>{_THOUGHT})"
    rf"|(?P<tagged>{tagged.OPENING})|(?P<xml>{xml_calls.OPENING})|(?P<tags><tool>)"
    rf"|(?P<wrapper>{_WRAPPER})|(?P<token>{_TOKEN})"
    rf"|(?P<final>{react.FINAL})|(?P<action>{react.OPENING})"
    rf"|(?P<fence>```|~~~)|(?P<code>`)"
    rf"|(?P<list>\[(?=\s*+{NAME}[ \t]*\())|(?P<json>\{{|\[(?=\s*+\{{))|(?P<line>{NAME}[ \t]?\()",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place worth a closer look."""

    kind: str
    start: int
    end: int


def find_spot(text: str, at: int) -> Spot | None:
    """The first place from `at` on where something may begin."""
    while coarse := _COARSE.search(text, at):
        at = coarse.start()
        if coarse.group().endswith("("):
            return Spot("line", at, coarse.end())
        if spot := fine_spot(text, at):
            return spot
        at += 1
    return None


def fine_spot(text: str, at: int) -> Spot | None:
    """What may begin at exactly this place."""
    fine = _FINE.match(text, at)
    return Spot(fine.lastgroup or "", at, fine.end()) if fine else None


_READERS: dict[str, Callable[[Text, int, KnownTools], Found | None]] = {
    "tagged": tagged.read_tagged,
    "xml": xml_calls.read_xml_call,
    "tags": react.read_tool_tags,
    "action": react.read_action,
    "fence": blocks.read_fence,
    "list": blocks.read_list,
    "json": blocks.read_json,
    "line": blocks.read_line,
}


def read_spot(text: Text, spot: Spot, tools: KnownTools) -> Found | None:
    """What begins at a spot, if it is anything but prose."""
    if reader := _READERS.get(spot.kind):
        found = reader(text, spot.start, tools)
        if found is None and spot.kind in ("tagged", "action"):
            return Found(spot.start, spot.end, kind="wrapper")
        return found
    if spot.kind == "thinking":
        return Found(spot.start, text.find(END_OF_THOUGHT, spot.end)[1], kind="thought")
    if spot.kind == "analysis":
        return Found(spot.start, text.find(_END_OF_ANALYSIS, spot.end)[1], kind="thought")
    if spot.kind == "thought":
        return Found(spot.start, spot.end, kind="thought")
    if spot.kind == "code":
        return blocks.read_code(text, spot.start)
    return Found(spot.start, spot.end, kind="wrapper" if spot.kind == "wrapper" else "token")
