"""Parses the calls in a model's text: one pass from left to right."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.core.messages import Schema, ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing import notations, plain_calls
from ferrule.parsing.calls import NAME
from ferrule.parsing.known_tools import KnownTools
from ferrule.parsing.text import MarkedSegment, ProseBuilder, SourceText
from ferrule.texts.language import begins_with_cjk

# Markers: the positions where something other than prose may begin, and the parser for each.

_ANALYSIS = r"(?:(?:<\|start\|>assistant)?<\|channel\|>analysis|(?:\A\s*|<\|start\|>assistant[ ])to=self)<\|message\|>"
_END_OF_ANALYSIS = lazy_pattern(r"<\|end\|>|<\|eom\|>|(?=<\|start\|>|<\|channel\|>)")
_END_OF_ANSWER = lazy_pattern(r"<\|eo[mt]\|>|<\|end\|>")
_ANSWER = r"(?:\A\s*|<\|start\|>assistant[ ])to=user<\|message\|>"
_HEADER = (
    r"<\|start\|>assistant[ ]to=[^<\n]{1,200}<\|message\|>(?=\s*<)|<\|(?:open\|>(?!tools<)|close\|>)\w{1,20}<\|sep\|>"
)
_THINKING_OPEN = (
    r"<(?:seed:|mm:)?(?:think|thinking|thought|reasoning)>|<\|START_THINKING\|>|\[THINK\]|◁think▷"
    r"|<\|open\|>think<\|sep\|>"
)
_THINKING_CLOSE = (
    r"</(?:seed:|mm:)?(?:think|thinking|thought|reasoning)>|<\|END_THINKING\|>|\[/THINK\]|◁/think▷"
    r"|<\|close\|>think<\|sep\|>"
)
END_OF_THINKING = lazy_pattern(_THINKING_CLOSE)
_MAX_ENDING = 1_000
_CALLS_AFTER_THINKING = lazy_pattern(rf"<[|｜]tool[^<>\n]*>|^(?:{notations.TAG_OPENING})", re.MULTILINE)
_WRAPPER = (
    r"(?:\]<\]minimax\[>\[\s*)?</?(?:(?:dots_|longcat_|[A-Za-z]+:)?(?:tool|function)_calls?|TOOLCALL|｜DSML｜\w+)>"
    r"|</?(?:steptml:)?(?:invoke|function)>"
)
_TOKEN = (
    r"(?:<\|start\|>assistant)?<\|channel\|>(?:final[ \t]*(?:<\|constrain\|>\w+)?|commentary[ \t]*)<\|message\|>"
    r"|<｜tool_call_begin｜>function<｜tool_sep｜>|<\|[A-Za-z_▁]{1,40}\|>|<｜[^｜<>{\n]{1,40}｜>|</?s>|</?co(?::[^<>\n]{0,80})?>"
)

_NOT_PROSE = lazy_pattern(rf"{_WRAPPER}|{_TOKEN}")

_QUOTED_NAME = rf"[\"']{NAME}[\"']"

# A fast search: what may begin something, or become its beginning when more text follows.
POSSIBLE_MARKER = lazy_pattern(
    rf"[<\[\]{{`~◁✿]|\A\s*to=[\w.:-]{{1,100}}[ ]?<|\bfunctools\[|(?<![\w./\\-]){NAME}[ \t]?\("
    rf"|^[ \t>*#]*+{notations.FIRST_WORDS}|{notations.NEXT_TURN}",
    re.MULTILINE,
)
_MARKER = lazy_pattern(
    rf"<(?=[^\W\d]|[/|｜])|✿|\]<\]|\A\s*to=(?=[\w.:-]{{1,100}}[ ]?<)"
    rf"|\[(?=\s*+[\w{{/\"'`(\[])|\{{(?=\s*+[\"'“\w}}])|[`~◁]|\bfunctools\["
    rf"|(?<![\w./\\-]){NAME}[ \t]?\("
    rf"|^[ \t>*#]*{notations.FIRST_WORDS}|{notations.NEXT_TURN}",
    re.MULTILINE,
)
_MARKER = lazy_pattern(
    rf"(?P<analysis>{_ANALYSIS})|(?P<answer>{_ANSWER})|(?P<thinking>{_THINKING_OPEN})|(?P<thought>{_THINKING_CLOSE})"
    rf"|(?P<header>{_HEADER})|(?P<xml>{notations.XML_OPENING})|(?P<tagged>{notations.TAG_OPENING})|(?P<tags><tool>)"
    rf"|(?P<part>{notations.CALL_PART})"
    rf"|(?P<wrapper>{_WRAPPER})|(?P<token>{_TOKEN})|(?P<response><tool_response>)"
    rf"|(?P<element>{notations.ELEMENT_OPENING})"
    rf"|(?P<final>{notations.FINAL_ANSWER})|(?P<action>{notations.ACTION_OPENING})"
    rf"|(?P<fence>```|~~~)|(?P<code>`)"
    rf"|(?P<list>\[(?=\s*+[\"'`]?{NAME}[ \t]*\())"
    rf"|(?P<json>\{{|\[(?=\s*+(?:[\[(]\s*+)?(?:\{{|{_QUOTED_NAME}\s*+,\s*+\{{)))"
    rf"|(?P<line>{NAME}[ \t]?\()|(?P<turn>{notations.NEXT_TURN})",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Marker:
    """A position where something other than prose may begin."""

    kind: str
    start: int
    end: int


def find_marker(text: str, at: int) -> Marker | None:
    """Return the first marker from `at` on."""
    while coarse := POSSIBLE_MARKER.search(text, at):
        at = coarse.start()
        if coarse.group().endswith("("):
            return Marker("line", at, coarse.end())
        if marker := match_marker(text, at):
            return marker
        at += 1
    return None


def match_marker(text: str, at: int) -> Marker | None:
    """Return the marker at exactly this position."""
    fine = _MARKER.match(text, at)
    return Marker(fine.lastgroup or "", at, fine.end()) if fine else None


_READERS: dict[str, Callable[[SourceText, int, KnownTools], MarkedSegment | None]] = {
    "tagged": notations.read_tagged_calls,
    "xml": notations.read_xml_call,
    "tags": notations.read_tool_tags,
    "part": notations.read_call_part,
    "element": notations.read_element_call,
    "action": notations.read_react_action,
    "fence": plain_calls.read_fenced_block,
    "code": plain_calls.read_inline_code,
    "list": plain_calls.read_list,
    "json": plain_calls.read_json,
    "line": plain_calls.read_line_of_calls,
}


def read_marker(text: SourceText, marker: Marker, tools: KnownTools) -> MarkedSegment | None:
    """Return the segment that begins at a marker, if it is not prose."""
    if reader := _READERS.get(marker.kind):
        segment = reader(text, marker.start, tools)
        if segment is None and marker.kind in ("tagged", "part", "action"):
            return MarkedSegment(marker.start, marker.end, kind="wrapper")
        return segment
    kind, end = marker.kind, marker.end
    if kind == "turn":
        return None
    if kind == "response":
        return MarkedSegment(marker.start, text.find("</tool_response>", end)[1], kind="code")
    if kind in ("thinking", "analysis", "thought"):
        if kind != "thought":
            end = _end_of_thinking(text, end) if kind == "thinking" else text.find(_END_OF_ANALYSIS, end)[1]
        return MarkedSegment(marker.start, end, kind="thought")
    return MarkedSegment(marker.start, end, kind="wrapper" if kind == "wrapper" else "token")


def _end_of_thinking(text: SourceText, at: int) -> int:
    """Return where thinking ends: at its closing tag or, without one, where the calls at the end of the text begin."""
    begin, end = text.find(END_OF_THINKING, at)
    if begin < end or not text.whole[-_MAX_ENDING:].rstrip().endswith((">", "}", "]")):
        return end
    return text.find(_CALLS_AFTER_THINKING, at)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    """The calls and the prose of a model's text."""

    calls: tuple[ToolCall, ...] = ()
    """In the order of the text. A call with an `error` cannot be made: report it to the model."""
    text: str = ""
    """The prose, without the calls, the tokens of their format, and the model's thinking."""
    source: str = ""
    """The calls as the model wrote them, with the prose before them; empty without calls."""
    rest: str = ""
    """What was left out, because it follows prose after the calls."""


def parse_tool_calls(text: str, schemas: Iterable[Schema] | KnownTools) -> list[ToolCall]:
    """Return the calls in a model's text that can be made: of known tools, with valid arguments."""
    return [call for call in parse_model_text(text, schemas).calls if call.error is None]


def parse_model_text(text: str, schemas: Iterable[Schema] | KnownTools, *, until_prose: bool = False) -> ParsedText:
    """Return all calls in a model's text, including those with errors, and the prose around them.

    With `until_prose`, only the calls up to the first sentence after a call: what a model writes there, further calls
    included, it writes without the results of the first ones.
    """
    if find_marker(text, 0) is None:
        return ParsedText(text=text.strip())
    tools = schemas if isinstance(schemas, KnownTools) else KnownTools(schemas)
    segments = _select_segments_to_remove(text, scan_segments(SourceText(text), tools))
    end = _find_end_of_first_calls(text, segments) if until_prose else None
    rest = "" if end is None else text[end:]
    if end is not None:
        text, segments = text[:end], [segment for segment in segments if segment.end <= end]
    calls = tuple(call for segment in segments for call in segment.calls)
    return ParsedText(calls=calls, text=_join_prose(text, segments), source=_join_source(text, segments), rest=rest)


_WORD = lazy_pattern(r"[^\W\d_]{2,}")
_MIN_WORDS: Final = 4
_MIN_CJK_CHARACTERS: Final = 6


def _find_end_of_first_calls(text: str, segments: Sequence[MarkedSegment]) -> int | None:
    """Return where the calls end that are followed by a sentence, or None."""
    end: int | None = None
    for segment in segments:
        if segment.calls:
            if end is not None and _is_sentence(text[end : segment.start]):
                return end
            end = segment.end
    return end if end is not None and _is_sentence(text[end:]) else None


def _is_sentence(text: str) -> bool:
    prose = _NOT_PROSE.sub(" ", text)
    is_cjk = sum(map(begins_with_cjk, prose)) >= _MIN_CJK_CHARACTERS
    return is_cjk or len(_WORD.findall(prose)) >= _MIN_WORDS


def scan_segments(text: SourceText, tools: KnownTools) -> list[MarkedSegment]:
    """Return everything that is not prose, from left to right."""
    segments: list[MarkedSegment] = []
    is_invented = False
    at = example_end = 0
    while (marker := find_marker(text.whole, at)) is not None:
        if marker.kind == "final":
            break
        if marker.kind == "answer":
            segments.append(MarkedSegment(marker.start, marker.end, kind="token"))
            at = text.find(_END_OF_ANSWER, marker.end)[0]
            continue
        if marker.kind == "turn" and not text.is_blank(0, marker.start):
            # The model asks itself a question: what follows, with its calls, is invented.
            if any(segment.calls for segment in segments):
                segments.append(MarkedSegment(marker.start, text.end, kind="thought"))
                break
            is_invented = True
        text.spend_effort()
        segment = read_marker(text, marker, tools)
        if marker.kind == "thought" and segments and segments[-1].kind != "thought":
            # The thinking was opened in the prompt: anything that looked like a call so far was part of it.
            segments = [s for s in segments if s.kind in ("thought", "token")]
        if (
            segment
            and segment.is_tagged
            and (
                plain_calls.is_tagged_example(text, segment.start)
                or (example_end and text.is_blank(example_end, segment.start))
            )
        ):
            example_end = segment.end
            segment = MarkedSegment(segment.start, segment.end, kind="code")
        if segment is not None and not (is_invented and segment.calls):
            segments.append(replace(segment, notation=marker.kind) if segment.calls else segment)
            text.calls_end = segment.end if segment.calls else text.calls_end
        at = max(segment.end if segment else marker.end, text.resume)
    return segments


def _select_segments_to_remove(text: str, segments: list[MarkedSegment]) -> list[MarkedSegment]:
    """Return the segments that are calls or not meant for the reader; all others stay in the text as prose.

    If the model used a format that is for calls only, calls in other formats do not count.
    """
    tagged = {_identity(call) for segment in segments if segment.is_tagged for call in segment.calls}
    if tagged:
        segments = [s for s in segments if s.is_tagged or all(_identity(call) in tagged for call in s.calls)]
    segments = _drop_repetitions(text, segments, tagged)
    any_calls = any(segment.calls for segment in segments)
    return [segment for segment in segments if segment.kind != "code" and (any_calls or segment.kind != "wrapper")]


def _drop_repetitions(text: str, segments: list[MarkedSegment], tagged: set[Hashable]) -> list[MarkedSegment]:
    """Drop the calls that a model only shows again, in another notation or later in the text.

    Equal calls in one list, or one after the other in exactly the same form, are several calls.
    """
    results: list[MarkedSegment] = []
    earlier: set[Hashable] = set()
    current: dict[Hashable, str] = {}
    previous: MarkedSegment | None = None
    for segment in segments:
        if segment.calls:
            if previous is None or not _continues(text, previous, segment):
                earlier |= current.keys()
                current = {}
            identities = tagged if tagged and not segment.is_tagged else earlier
            form = _form_of(text, segment)
            calls = tuple(
                call
                for call in segment.calls
                if _identity(call) not in identities and current.get(_identity(call), form) == form
            )
            current.update(dict.fromkeys(map(_identity, calls), form))
            previous, segment = segment, replace(segment, calls=calls)
        results.append(segment)
    return results


def _continues(text: str, previous: MarkedSegment, segment: MarkedSegment) -> bool:
    """Return whether two segments belong to one sequence of calls: lists, fenced blocks and actions are complete."""
    between = _NOT_PROSE.sub("", text[previous.end : segment.start]).strip(" \t\r\n;,|")
    is_list = text[segment.start] == "[" and not segment.is_tagged
    in_sequence = segment.notation not in ("fence", "list", "action") and not is_list
    return in_sequence and previous.notation == segment.notation and not between


_NUMBERS_AND_IDS = lazy_pattern(r"""\d+|["'](?:id|call_id|tool_call_id)["']\s*:\s*["'][^"']*["']\s*,?|\[CALL_ID\]\w+""")


def _form_of(text: str, segment: MarkedSegment) -> str:
    """Normalize a call's notation, so that intended repeats compare equal."""
    introduced = text[max(0, segment.start - 20) : segment.start].rstrip(" \t*`")[-1:] in (":", "：")
    form = _NUMBERS_AND_IDS.sub("", text[segment.start : segment.end])
    return f"{introduced}{''.join(form.split()) if segment.is_tagged else form.strip()}"


def _identity(call: ToolCall) -> Hashable:
    return call.name, call.error, _hashable(call.arguments)


def _hashable(value: Any) -> Hashable:
    """Make values equal that a tool would not tell apart: 2 and "2", nothing and null."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return text.lower() if text in ("True", "False") else text


def _join_source(text: str, segments: list[MarkedSegment]) -> str:
    """Return what the model wrote up to its last call, without thinking, repeated calls and empty tags."""
    parts: list[str] = []
    count, at = 0, 0
    for segment in segments:
        parts.append(remove_empty_markup(text[at : segment.start]))
        if segment.calls:
            parts.append(text[segment.start : segment.end].strip())
            count = len(parts)
        at = max(at, segment.end)
    return "\n".join(filter(None, parts[:count]))


_RESIDUE = lazy_pattern(r"(?:```\w*|~~~\w*|</?\w{1,20}>|[{}\[\]()`\s,;])+")


def remove_empty_markup(text: str) -> str:
    """Return the text, or nothing if it has only brackets, fences and tags with nothing inside."""
    return "" if _RESIDUE.fullmatch(text) else text.strip()


def _join_prose(text: str, segments: list[MarkedSegment]) -> str:
    prose, parts, at = ProseBuilder(), [], 0
    after_calls = False
    for segment in segments:
        piece = text[at : segment.start]
        if not (after_calls and not piece.strip(" \t\r\n;,|")):
            parts.append(prose.add(piece))
        if segment.kind != "token":
            prose.add_gap()
        after_calls = bool(segment.calls)
        at = max(at, segment.end)
    parts.append(prose.add(text[at:]))
    return "".join(parts)
