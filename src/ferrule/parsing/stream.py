"""Parses a text while it is streamed: prose is passed on immediately, text that may be a call is held back.

The calls are parsed when the text is complete, by the same function as any other text. Until then there is only one
question: can the text that follows still turn this into a call? If that is not certain, it is held back.
"""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.core.messages import Schema
from ferrule.core.patterns import lazy_pattern
from ferrule.parsing import notations, plain_calls
from ferrule.parsing.calls import NAME, extract_calls, find_name_in_json
from ferrule.parsing.known_tools import KnownTools
from ferrule.parsing.literals import LiteralError, LiteralReader
from ferrule.parsing.reader import END_OF_THINKING, POSSIBLE_MARKER, Marker, ParsedText, match_marker, parse_model_text
from ferrule.parsing.text import ProseBuilder, SourceText

_LOOK_BACK = 1_000
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
            return self._skip_thinking()
        text = SourceText(self._before + self._pending)
        offset = at = settled = len(self._before)
        while trigger := POSSIBLE_MARKER.search(text.whole, at):
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

    def _skip_thinking(self) -> bool:
        ended = END_OF_THINKING.search(self._pending)
        self._consume(ended.end() if ended else max(0, len(self._pending) - 30))
        self._thinking = ended is None
        return not self._thinking

    def _pass_on(self, length: int) -> str:
        piece = self._pending[:length]
        self._consume(length)
        return self._prose.add(piece)

    def _consume(self, length: int) -> None:
        if length > 0:
            self._before = (self._before + self._pending[:length])[-_LOOK_BACK:]
            self._pending = self._pending[length:]
            self._try_again = 0
