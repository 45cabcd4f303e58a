"""A question into the steps it asks for, in order.

`… and then …`, several sentences, a numbered list, 然后 and ； part steps. A plain `and` or a comma parts them only if
each side asks for a tool of its own: `weather in Paris and time in Tokyo`, but not `3 and 5`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from ferrule.models.offline.numbers import DIGITS, OPERAND
from ferrule.models.offline.reading import RESULT_CLOSES, RESULT_OPENS, Reading

# None of these begins with spaces of any number: a page of them would take minutes.
_APART = re.compile(
    r"[;；\n]+\s*"
    r"|(?:(?<=[\w)\"'”]{2}\.)|(?<=[\w)\"'”][!?]))\s+(?=[A-Z\u4e00-\u9fff\"“])"
    r"|(?<=[。！？])\s*"
    r"|(?<=\s)(?:and\s+then|then|after\s+that|afterwards|and\s+also|and\s+finally|finally|and\s+after\s+that)\b,?\s*"
    r"|(?:然后再?|接着再?|之后再?|随后|最后再?|并且|同时)[，,]?\s*"
    r"|[，,]\s*再(?=[把将用加减乘除翻发查算])"
)
_MAYBE_APART = re.compile(
    r"(?<=\s)and\s+|[，,]\s*(?:and\s+)?|以及|还有|并(?=[把将])|和(?=[\u4e00-\u9fff]{2})|(?<=\s)as\s+well\s+as\s+"
)
_NUMBERED = re.compile(
    r"(?:(?<=\s)|\A)(?:\(?\d{1,2}[.)、]|[①②③④⑤⑥⑦⑧⑨⑩])\s+(?=\S)|^\s*[-*•]\s+|(?:^|\s)(?:first|second|third)(?:ly)?,\s*",
    re.IGNORECASE | re.MULTILINE,
)
_LED_IN = re.compile(
    r"\A(?:and|then|also|next|finally|first|然后|接着|再|并|最后|首先|先)\b[\s,，]*|\A[，,]\s*", re.IGNORECASE
)
_TELLS_OF = re.compile(
    r"(?:my|the|his|her|its|their|our|it|this|that|these|your)\b[\w\s'’-]*?\b(?:is|are|was|should|will|can|has|have)\b",
    re.IGNORECASE,
)
_REMARK = re.compile(
    rf"(?:i\s+(?:am|was|have|had|love|like|think|feel|shut|deleted|just)\b|i['’]|we\s|thank|hello\b|hi\b|hey\b"
    rf"|我们|我是|我在|你好|谢谢|{_TELLS_OF.pattern})",
    re.IGNORECASE,
)
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|No|e\.g|i\.e|approx)\.\Z")
_BACK = re.compile(
    r"(?<!\bis )(?<!\bas )\b(?:it|them)\b(?!\s+(?:is|are|was|will)\b)"
    r"|\b(?:that|this|the|its)\s+(?:result|answer|output|sum|total|number|value|text|contents?|translation|product)\b"
    r"|\b(?:that|this)\b(?=\s*(?:[?.!]|\Z|to\b|by\b|into\b|in\b))"
    r"|(?:这个|该|上述|上面的|得到的)?(?:结果|答案)|它|这个数"
)
_OPEN_END = re.compile(
    rf"\A(?:multiply|divide)\s+by\s+{OPERAND}|\A(?:add|subtract)\s+{OPERAND}\s*[.?!]?\Z"
    r"|\A(?:plus|minus|times|divided by)\s"
    r"|\A(?:double|halve|triple|square)\s*[.?!]?\Z|\A(?:再)?(?:加上?|减去?|乘以?|除以|翻倍|减半|平方)",
    re.IGNORECASE,
)

_MOST_CUTS = 8
"""Places at which one part is tried to be cut."""
_ONLY_A_NUMBER = re.compile(rf"\s*[^\w\s-]?(-?{DIGITS})\s?\S{{0,4}}\s*")
"""Perhaps with a sign of money before it, or a unit behind."""


def parts_of(question: str) -> list[str]:
    """The parts of a question that certainly stand apart. Quoted text is never cut."""
    visible = Reading(question).unquoted
    cuts = list(_APART.finditer(visible))
    numbers = list(_NUMBERED.finditer(visible))
    cuts += numbers if len(numbers) > 1 else []
    parts, at = [], 0
    for cut in sorted(cuts, key=lambda match: match.start()):
        if cut.start() < at or _ABBREVIATION.search(question[: cut.start()]):
            continue
        parts.append(question[at : cut.start()])
        at = cut.end()
    parts.append(question[at:])
    return _with_remarks([part for part in map(_tidy, parts) if any(char.isalnum() for char in part)])


def parted_further(part: str, is_request: Callable[[str], bool]) -> list[str]:
    """A part cut at `and` or a comma where both sides are requests; later ones may speak of the result before."""
    for cut in islice(_MAYBE_APART.finditer(Reading(part).unquoted), _MOST_CUTS):
        left, right = _tidy(part[: cut.start()]), _tidy(part[cut.end() :])
        if (
            left
            and right
            and is_request(left)
            and is_request(with_result(right, "7") if speaks_of_result(right) else right)
        ):
            return [left, *parted_further(right, is_request)]
    return [part]


def speaks_of_result(step: str) -> bool:
    """Whether a later step means what the one before it gave."""
    visible = Reading(step).unquoted
    return _BACK.search(visible) is not None or _OPEN_END.search(visible) is not None


def with_result(step: str, result: str) -> str:
    """The step with the result before it in the place of `it`."""
    number = _ONLY_A_NUMBER.fullmatch(result)
    shown = number[1].replace(",", "") if number else f"{RESULT_OPENS}{result}{RESULT_CLOSES}"
    back = _BACK.search(Reading(step).unquoted)
    if back is not None:
        return step[: back.start()] + shown + step[back.end() :]
    word = re.match(r"(?:再)?(multiply|divide|add|subtract)\b", step, re.IGNORECASE)
    if word is None:
        return (
            f"{step.rstrip(' .?!')} {shown}"
            if re.match(r"[a-z]+\s*[.?!]?\Z", step, re.I)
            else f"{shown} {step.removeprefix('再')}"
        )
    rest = step[word.end() :].rstrip(" .?!")
    joined = {"add": f"add{rest} to {shown}", "subtract": f"subtract{rest} from {shown}"}
    return joined.get(word[1].lower(), f"{word[1]} {shown}{rest}")


def is_remark(part: str) -> bool:
    """Whether a sentence asks for nothing: it tells something, or is polite."""
    return _REMARK.match(part) is not None and "?" not in part and "？" not in part


def _with_remarks(parts: list[str]) -> list[str]:
    """`Its id is 5.` belongs to the request before it."""
    joined: list[str] = []
    for part in parts:
        if joined and _TELLS_OF.match(part) and "?" not in part and not is_remark(joined[-1]):
            joined[-1] = f"{joined[-1].rstrip('. ')}, {part}"
        else:
            joined.append(part)
    return joined


def _tidy(part: str) -> str:
    part = part.strip(" \t\r，,")
    while (shorter := _LED_IN.sub("", part)) != part:
        part = shorter
    return part.strip()
