"""Parses the calls in a model's text: one pass from left to right, when it is complete or while it is streamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.core.messages import Schema, ToolCall
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing import notations, plain_calls
from ferrule.parsing.calls import NAME, extract_calls, find_name_in_json
from ferrule.parsing.known_tools import KnownTools
from ferrule.parsing.literals import LiteralError, LiteralReader
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

# A fast search: a character that can begin something, or the start of a ReAct line.
_POSSIBLE_MARKER = lazy_pattern(
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
    while coarse := _POSSIBLE_MARKER.search(text, at):
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


# While a text is streamed, prose is passed on immediately, and text that may be a call is held back. The calls are
# parsed when the text is complete, by the same function as any other text. Until then there is only one question: can
# the text that follows still turn this into a call? If that is not certain, it is held back.

_LOOK_BACK = 1_000
_TRIGGER = lazy_pattern(
    rf"[<\[\]{{`~◁✿]|\A\s*to=[\w.:-]{{1,100}}[ ]?<|\bfunctools\[|(?<![\w./\\-]){NAME}[ \t]?\("
    rf"|^[ \t>*#]*+{notations.FIRST_WORDS}",
    re.MULTILINE,
)
_HEAD_SO_FAR = lazy_pattern(
    rf"[ \t>*#•→=-]*+(?:\d{{1,3}}[.)]?[ \t]*)?`?(?:{plain_calls.TOOL_LABEL}[ \t*`]*+)?"
    r"(?:[^\W\d][\w./\\-]*+(?:,[ \t]*\w*+){0,8}[ \t]*(?:=[ \t]*)?)?"
    r"(?:await[ \t]*)?(?:print[ \t]*\(?[ \t]*)?(?:[\w./\\-]*+[ \t]?)?"
)
_NAME_SO_FAR = lazy_pattern(r"[:：*`]*[ \t]*`?(?<![\w./\\-])[\w./\\-]*+[ \t*`:]*\Z")
_TAG_SO_FAR = lazy_pattern(
    r"(?:\s*to=[\w.:-]+[ ]?)?<[^<>\n{]{0,99}\Z|<(?:tool_use|call)>\s*(?:<\w{0,20})?\Z"
    r"|◁[^▷\n]{0,9}\Z|\](?:<(?:\][^<\n]{0,40})?)?\Z"
)
_MARKS_SO_FAR = lazy_pattern(r"`{1,2}\Z|~{1,2}\Z|<\|close\|>\w{0,20}(?:<\|?s?e?p?\|?)?\Z")
_LIST_SO_FAR = lazy_pattern(
    rf"\[\s*+[(\[]?\s*+(?:[\"'`]?{NAME}[ \t]*[\"']?\s*+,?\s*+|[\"'`])?\Z|\[(?:T(?:O(?:OL_?[A-Z_]*)?)?|/?T?H?I?N?K?)\Z"
)
_VALUE_SO_FAR = lazy_pattern(r"[\w.$+\\-]*+[ \t]*+:?\Z")
_LINE_SO_FAR = lazy_pattern(rf"[ \t>*#]*+{notations.FIRST_WORDS}[ \t\d*]*\Z")
_JSON_SO_FAR = lazy_pattern(r"\{\s*+(?:[\"'“\w}]|\Z)|\[")
_OPENS_CALLS = ("analysis", "answer", "tagged", "xml", "tags", "part", "wrapper", "action", "list")
_BEGINS_CALLS = (
    *("<|message_sep|>", "<|action_start|>", "<|channel|>", "<|start|>", "<｜tool_call_begin｜>", "<|message_model|>"),
    *("<|open|>", "]<]minimax[>[", "<|from|>", "✿"),
)
_MAX_HEAD = 200
_NON_SPACE = lazy_pattern(r"\S")


class ToolCallReader:
    """Receives a model's text piece by piece."""

    def __init__(self, schemas: Iterable[Schema] | KnownTools) -> None:
        self._tools = schemas if isinstance(schemas, KnownTools) else KnownTools(schemas)
        self._pieces: list[str] = []
        self._prose = ProseBuilder()
        self._before = ""
        """The end of the text that was passed on: whether a call may begin depends on the text before it."""
        self._pending = ""
        self._try_again = 0
        self._thinking = False
        self._is_holding = False
        self._verbatim = False

    def feed(self, piece: str) -> str:
        """Return the prose that can be shown after this piece."""
        self._pieces.append(piece)
        if self._is_holding:
            return ""
        self._pending += piece
        if self._verbatim:
            return self._pass_on(len(self._pending))
        visible: list[str] = []
        while self._advance(visible):
            pass
        return "".join(visible)

    def close(self) -> ParsedText:
        """Return the calls and the prose of the whole text. The prose begins with what `feed` returned."""
        return parse_model_text("".join(self._pieces), self._tools)

    def _advance(self, visible: list[str]) -> bool:
        """Pass on what precedes the next possible call; False if more text is needed."""
        if self._thinking:
            ended = END_OF_THINKING.search(self._pending)
            self._consume(ended.end() if ended else max(0, len(self._pending) - 30))
            self._thinking = ended is None
            return not self._thinking
        text = SourceText(self._before + self._pending)
        offset = at = settled = len(self._before)
        while trigger := _TRIGGER.search(text.whole, at):
            start = trigger.start()
            marker = match_marker(text.whole, start)
            verdict = self._classify_trigger(text, start, marker)
            if isinstance(verdict, int) and verdict > start:
                settled = verdict if verdict > start + 1 else settled
                at = verdict
                continue
            if verdict == "hold":
                visible.append(self._pass_on(self._start_of_held_words(text, settled, start) - offset))
                return False
            if verdict == "stop":
                visible.append(self._pass_on(self._start_of_call(text, start) - offset))
                self._is_holding = True
                return False
            assert marker is not None
            return self._remove_marker(marker, offset, visible)
        visible.append(self._pass_on(self._start_of_held_words(text, settled, text.end) - offset))
        return False

    def _classify_trigger(self, text: SourceText, start: int, marker: Marker | None) -> int | str:
        """Return where to continue if nothing begins here; or what to do: hold, stop, or remove the marker."""
        rest = text.whole[start : start + 120]
        if rest.startswith(_BEGINS_CALLS):
            return "stop"
        if _MARKS_SO_FAR.match(rest):
            return "hold"
        if marker is None or marker.kind == "json":
            if _TAG_SO_FAR.match(rest) or _LIST_SO_FAR.match(rest) or _LINE_SO_FAR.match(rest):
                return "hold"
            return start + 1 if marker is None else self._classify_json(text, start)
        if marker.kind in _OPENS_CALLS:
            return "stop"
        if marker.kind == "element":
            return "stop" if self._tools.find(text.whole[start + 1 : marker.end - 1]) else start + 1
        if marker.kind == "response":
            end = text.find("</tool_response>", start)[1]
            return end if end < text.end else self._hold_longer()
        if marker.kind in ("fence", "code"):
            return self._classify_code(text, start)
        if marker.kind == "line":
            return "stop" if self._may_be_call_line(text, marker) else marker.end
        return marker.end if marker.kind == "turn" else marker.kind

    def _classify_json(self, text: SourceText, start: int) -> int | str:
        if not _JSON_SO_FAR.match(text.whole, start):
            return start + 1
        if plain_calls.find_name_line(text, start, self._tools)[1]:
            return "stop"
        if len(self._pending) < self._try_again:
            return "hold"
        literals = LiteralReader(text)
        try:
            value, end = literals.read_value(start)
        except LiteralError as failure:
            if _VALUE_SO_FAR.match(text.whole, failure.at):
                return self._hold_longer()
            return "stop" if find_name_in_json(text.whole[start:]) else start + 1
        if literals.unclosed:
            return self._hold_longer()
        return "stop" if extract_calls(value, self._tools, [], "", is_certain=False) else end

    def _classify_code(self, text: SourceText, start: int) -> int | str:
        if len(self._pending) < self._try_again:
            return "hold"
        segment = plain_calls.read_fenced_block(text, start, self._tools)
        if segment is None:
            return "hold" if text.find("\n", start)[0] == text.end else start + 1
        if segment.kind != "code":
            return "stop"
        if segment.end >= text.end:
            return self._hold_longer()
        following = _NON_SPACE.search(text.whole, segment.end)
        place = following.start() if following else text.end
        is_name = plain_calls.find_name_line(text, place, self._tools)[1] is not None
        return start + 1 if is_name else segment.end  # after the name of a tool its arguments may follow

    def _hold_longer(self) -> str:
        # Parsed again when it has grown by an eighth: otherwise a long value would be parsed again with every piece.
        self._try_again = len(self._pending) * 9 // 8 + 1
        return "hold"

    def _may_be_call_line(self, text: SourceText, marker: Marker) -> bool:
        line = text.line_start(marker.start)
        if self._tools.find(text.whole[marker.start : marker.end - 1]) or text.is_blank(0, line):
            return True
        head = text.whole[line : marker.start]
        return text.whole[marker.start : marker.end - 1].strip() == "print" and len(head) < _MAX_HEAD

    def _start_of_call(self, text: SourceText, start: int) -> int:
        """Return where a call begins; one that is alone on its line takes the whole line."""
        start = plain_calls.find_name_line(text, start, self._tools)[0]
        line = text.line_start(start)
        head = _HEAD_SO_FAR.fullmatch(text.whole, line, start) if start - line < _MAX_HEAD else None
        return max(len(self._before), line if head else start - text.whole[:start].endswith(("`", "\\")))

    def _start_of_held_words(self, text: SourceText, at: int, end: int) -> int:
        """Return where the words between `at` and `end` begin that may belong to a call."""
        line = text.line_start(end)
        if end - line < _MAX_HEAD and _HEAD_SO_FAR.fullmatch(text.whole, line, end):
            begin = line
        else:
            words = _NAME_SO_FAR.search(text.whole, max(at, line, end - _MAX_HEAD), end)
            begin = words.start() if words else end
        begin = min(begin, plain_calls.find_name_line(text, end, self._tools)[0])
        return at if text.is_blank(0, begin) else max(at, begin)

    def _remove_marker(self, marker: Marker, offset: int, visible: list[str]) -> bool:
        visible.append(self._pass_on(marker.start - offset))
        if marker.kind == "final":
            self._verbatim = True
            visible.append(self._pass_on(len(self._pending)))
            return False
        self._consume(marker.end - marker.start)
        if marker.kind not in ("token", "header"):
            self._prose.add_gap()
        self._thinking = marker.kind == "thinking"
        return True

    def _pass_on(self, length: int) -> str:
        piece = self._pending[:length]
        self._consume(length)
        return self._prose.add(piece)

    def _consume(self, length: int) -> None:
        if length > 0:
            self._before = (self._before + self._pending[:length])[-_LOOK_BACK:]
            self._pending = self._pending[length:]
            self._try_again = 0
