"""Reading calls from a text that is still coming: prose goes through at once, what may be a call is held back.

The calls are read when the text is complete, by the same function as any other text. Until then only one question is
asked: can what comes next still turn this into a call? Wherever that is not certain, the answer is yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ferrule.messages import Schema
from ferrule.parsing import blocks, objects
from ferrule.parsing.known import KnownTools
from ferrule.parsing.literals import Literals, Unreadable
from ferrule.parsing.prose import Prose
from ferrule.parsing.pythonic import NAME
from ferrule.parsing.reading import Reading, read_tool_calls
from ferrule.parsing.spots import END_OF_THOUGHT, Spot, fine_spot
from ferrule.parsing.text import Text

_LOOK_BACK = 1_000
_TRIGGER = re.compile(
    rf"[<\[{{`~◁]|\bfunctools\[|(?<![\w./\\-]){NAME}[ \t]?\(|^[ \t>*#]*+(?:Action|Final[ \t]Answer)", re.MULTILINE
)
_HEAD_SO_FAR = re.compile(
    r"[ \t>*#•-]*+(?:\d{1,3}[.)]?[ \t]*)?`?(?:[^\W\d][\w./\\-]*+[ \t]*(?:=[ \t]*)?)?"
    r"(?:await[ \t]*)?(?:print[ \t]*\(?[ \t]*)?(?:[\w./\\-]*+[ \t]?)?"
)
_NAME_SO_FAR = re.compile(r"[:：*`]*[ \t]*`?(?<![\w./\\-])[\w./\\-]*+[ \t]?\Z")
_TAG_SO_FAR = re.compile(r"<[^<>\n{]{0,99}\Z|◁[^▷\n]{0,9}\Z")
_MARKS_SO_FAR = re.compile(r"`{1,2}\Z|~{1,2}\Z")
_LIST_SO_FAR = re.compile(rf"\[\s*+(?:{NAME}[ \t]*)?\Z|\[(?:T(?:O(?:OL_?[A-Z_]*)?)?|/?T?H?I?N?K?)\Z")
_LINE_SO_FAR = re.compile(r"[ \t>*#]*+(?:Action|Final[ \t]Answer)[ \t\d*]*\Z")
_JSON_SO_FAR = re.compile(r"\{\s*+(?:[\"'“\w]|\Z)|\[\s*+(?:\{|\Z)")
_OPENS_CALLS = ("tagged", "xml", "tags", "wrapper", "action", "list")
_BEGINS_CALLS = ("<|message_sep|>", "<|action_start|>", "<|channel|>", "<|start|>", "<｜tool_call_begin｜>")
_LONGEST_HEAD = 200


class ToolCallReader:
    """Takes a model's text piece by piece."""

    def __init__(self, schemas: Iterable[Schema] | KnownTools) -> None:
        self._tools = schemas if isinstance(schemas, KnownTools) else KnownTools(schemas)
        self._pieces: list[str] = []
        self._prose = Prose()
        self._before = ""
        """The end of what is settled: whether a call may begin depends on what stands before it."""
        self._pending = ""
        self._try_again = 0
        self._thinking = False
        self._held = False
        self._verbatim = False

    def feed(self, piece: str) -> str:
        """The prose that can be shown now."""
        self._pieces.append(piece)
        if self._held:
            return ""
        self._pending += piece
        if self._verbatim:
            return self._settle(len(self._pending))
        shown: list[str] = []
        while self._advance(shown):
            pass
        return "".join(shown)

    def close(self) -> Reading:
        """What the whole text says. Its prose begins with what was shown."""
        return read_tool_calls("".join(self._pieces), self._tools)

    def _advance(self, shown: list[str]) -> bool:
        """Settle what can be settled before the next doubtful place; False when more text is needed."""
        if self._thinking:
            return self._think()
        text = Text(self._before + self._pending)
        offset = at = settled = len(self._before)
        while trigger := _TRIGGER.search(text.whole, at):
            start = trigger.start()
            spot = fine_spot(text.whole, start)
            verdict = self._judge(text, start, spot)
            if isinstance(verdict, int) and verdict > start:
                settled = verdict if verdict > start + 1 else settled
                at = verdict
                continue
            if verdict == "hold":
                shown.append(self._settle(self._tail(text, settled, start) - offset))
                return False
            if verdict == "stop":
                shown.append(self._settle(self._start_of_call(text, start) - offset))
                self._held = True
                return False
            assert spot is not None
            return self._leave_out(spot, offset, shown)
        shown.append(self._settle(self._tail(text, settled, text.end) - offset))
        return False

    def _judge(self, text: Text, start: int, spot: Spot | None) -> int | str:
        """Where to go on if nothing begins here; or what to do: hold, stop, or leave the spot out."""
        rest = text.whole[start : start + 120]
        if rest.startswith(_BEGINS_CALLS):
            return "stop"
        if _MARKS_SO_FAR.match(rest):
            return "hold"
        if spot is None or spot.kind == "json":
            if _TAG_SO_FAR.match(rest) or _LIST_SO_FAR.match(rest) or _LINE_SO_FAR.match(rest):
                return "hold"
            return start + 1 if spot is None else self._judge_json(text, start)
        if spot.kind in _OPENS_CALLS:
            return "stop"
        if spot.kind in ("fence", "code"):
            return self._judge_code(text, start)
        if spot.kind == "line":
            return "stop" if self._may_be_line(text, spot) else spot.end
        return spot.kind

    def _judge_json(self, text: Text, start: int) -> int | str:
        if not _JSON_SO_FAR.match(text.whole, start):
            return start + 1
        if len(self._pending) < self._try_again:
            return "hold"
        literals = Literals(text)
        try:
            value, end = literals.value(start)
        except Unreadable as failure:
            if failure.at >= text.end:
                return self._hold_longer()
            return "stop" if objects.unreadable(text.whole[start:], "", self._tools) else start + 1
        if literals.forced:
            return self._hold_longer()
        return "stop" if objects.calls_in(value, self._tools, [], "", sure=False) else end

    def _judge_code(self, text: Text, start: int) -> int | str:
        if len(self._pending) < self._try_again:
            return "hold"
        found = blocks.read_fence(text, start, self._tools)
        if found is None:
            return "hold" if text.find("\n", start)[0] == text.end else start + 1
        if found.kind != "code":
            return "stop"
        return self._hold_longer() if found.end >= text.end else found.end

    def _hold_longer(self) -> str:
        # Looked at again when it has grown by an eighth: so a long value does not cost its length with every piece.
        self._try_again = len(self._pending) * 9 // 8 + 1
        return "hold"

    def _may_be_line(self, text: Text, spot: Spot) -> bool:
        if self._tools.find(text.whole[spot.start : spot.end - 1]) or not text.whole[: spot.start].strip():
            return True
        head = text.whole[text.line_start(spot.start) : spot.start]
        return text.whole[spot.start : spot.end - 1].strip() == "print" and len(head) < _LONGEST_HEAD

    def _start_of_call(self, text: Text, start: int) -> int:
        """A call that has its line to itself takes the whole line."""
        line = text.line_start(start)
        head = _HEAD_SO_FAR.fullmatch(text.whole, line, start) if start - line < _LONGEST_HEAD else None
        return max(len(self._before), line if head else start - text.whole[:start].endswith("`"))

    def _tail(self, text: Text, at: int, end: int) -> int:
        """Where the words between `at` and `end` begin that may turn out to belong to a call."""
        line = text.line_start(end)
        if end - line < _LONGEST_HEAD and _HEAD_SO_FAR.fullmatch(text.whole, line, end):
            return max(at, line)
        words = _NAME_SO_FAR.search(text.whole, max(at, line, end - _LONGEST_HEAD), end)
        return max(at, words.start()) if words else end

    def _leave_out(self, spot: Spot, offset: int, shown: list[str]) -> bool:
        shown.append(self._settle(spot.start - offset))
        if spot.kind == "final":
            self._verbatim = True
            shown.append(self._settle(len(self._pending)))
            return False
        self._drop(spot.end - spot.start)
        if spot.kind != "token":
            self._prose.gap()
        self._thinking = spot.kind == "thinking"
        return True

    def _think(self) -> bool:
        ended = END_OF_THOUGHT.search(self._pending)
        self._drop(ended.end() if ended else max(0, len(self._pending) - 30))
        self._thinking = ended is None
        return not self._thinking

    def _settle(self, length: int) -> str:
        piece = self._pending[:length]
        self._drop(length)
        return self._prose.add(piece)

    def _drop(self, length: int) -> None:
        if length > 0:
            self._before = (self._before + self._pending[:length])[-_LOOK_BACK:]
            self._pending = self._pending[length:]
            self._try_again = 0
