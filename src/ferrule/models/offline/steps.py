"""Splits a question into the steps it asks for, in order.

`… and then …`, sentences, a numbered list, 然后 and ； separate steps. A plain `and` or a comma separates them only if
each side asks for a tool: `weather in Paris and time in Tokyo`, but not `3 and 5`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from ferrule.core.patterns import lazy_pattern
from ferrule.models.offline.values import RESULT_END, RESULT_START, Sentence, find_paths
from ferrule.texts.numbers import DIGITS, NUMBER
from ferrule.texts.phrases import REWRITES, TEXT_TASK

# No pattern here begins with a repeated space: a page of spaces would take minutes.
_SEPARATOR = lazy_pattern(
    r"[;；\n]+\s*"
    r"|(?:(?<=[\w)\"'”]{2}\.)|(?<=[\w)\"'”][!?]))\s+(?=[A-Z\u4e00-\u9fff\"“])"
    r"|(?<=[。！？])\s*"
    r"|(?<=\s)(?:and\s+then|then|after\s+that|afterwards|and\s+also|and\s+finally|finally|and\s+after\s+that)\b,?\s*"
    r"|(?:然后再?|接着再?|之后再?|随后|最后再?|并且|同时)[，,]?\s*"
    r"|[，,]\s*再(?=[把将用加减乘除翻发查算])"
)
_POSSIBLE_SEPARATOR = lazy_pattern(
    r"(?<=\s)and\s+|[，,]\s*(?:and\s+)?(?!内容)|以及|还有|并(?=[把将])|和(?=[\u4e00-\u9fff]{2})|(?<=\s)as\s+well\s+as\s+"
)
_LIST_NUMBER = lazy_pattern(
    r"(?:(?<=\s)|\A)(?:\(?\d{1,2}[.)、]|[①②③④⑤⑥⑦⑧⑨⑩])\s+(?=\S)|^\s*[-*•]\s+|(?:^|\s)(?:first|second|third)(?:ly)?,\s*",
    re.IGNORECASE | re.MULTILINE,
)
_CONJUNCTION = lazy_pattern(
    r"\A(?:and|then|also|next|finally|first|然后|接着|再|并|最后|首先|先)\b[\s,，]*|\A[，,]\s*", re.IGNORECASE
)
_REMARK = lazy_pattern(
    r"(?:i\s+(?:am|was|have|had|love|like|think|feel|shut|deleted|just)\b|i['’]|we\s|thank|hello\b|hi\b|hey\b"
    r"|(?:my|the|his|her|its|their|our|it|this|that|these|your)\b[\w\s'’-]*?\b(?:is|are|was|should|will|can|has|have)\b"
    r"|我们|我是|我在|你好|谢谢)",
    re.IGNORECASE,
)
_ABBREVIATION = lazy_pattern(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|No|e\.g|i\.e|approx)\.\Z")
_REFERENCE = lazy_pattern(
    r"(?<!\bis )(?<!\bas )(?<!\bwas )(?<!\bwill )\b(?:it|them)\b(?!['’]s\b|\s+(?:is|are|was|will)\b)"
    r"|\b(?:that|this|the|its)\s+(?:result|answer|output|sum|total|number|value|text|contents?|translation|product)\b"
    r"|\b(?:that|this)\b(?=\s*(?:[?.!]|\Z|to\b|by\b|into\b|in\b))"
    r"|(?:这个|该|上述|上面的|得到的)?(?:结果|答案)|它|这个数"
)
_LACKS_OPERAND = lazy_pattern(
    rf"\A(?:multiply|divide)\s+by\s+{NUMBER}|\A(?:add|subtract)\s+{NUMBER}\s*[.?!]?\Z"
    r"|\A(?:plus|minus|times|divided by)\s"
    r"|\A(?:double|halve|triple|square)\s*[.?!]?\Z|\A(?:再)?(?:加上?|减去?|乘以?|除以|翻倍|减半|平方)",
    re.IGNORECASE,
)
_SINGLE_NUMBER = lazy_pattern(rf"\s*[^\w\s-]?(-?{DIGITS})\s?\S{{0,4}}\s*")
"""Perhaps with a currency sign before it, or a unit after it."""
_MAX_CUTS = 8


def split_steps(question: str, is_request: Callable[[str], bool]) -> list[str]:
    """Return the steps of a question; `is_request` says whether a text asks for a tool by itself."""
    for pattern, steps in REWRITES:
        match = re.fullmatch(pattern, question.strip(), re.IGNORECASE)
        if match is not None:
            return _split_at_separators(steps.format(**match.groupdict()))
    if TEXT_TASK.match(question):
        return [question.strip()]
    return [step for part in _split_at_separators(question) for step in _split_at_conjunctions(part, is_request)]


def refers_to_result(step: str) -> bool:
    """Return whether a step refers to the result of the one before: `double it`, `the result`, `plus 3`."""
    text = Sentence(step).unquoted
    return _REFERENCE.search(text) is not None or _LACKS_OPERAND.search(text) is not None


def insert_result(step: str, result: str) -> str:
    """Return the step with the result in the place of the reference."""
    number = _SINGLE_NUMBER.fullmatch(result)
    is_path = [path.value for path in find_paths(result)] == [result]
    value = number[1].replace(",", "") if number else result if is_path else f"{RESULT_START}{result}{RESULT_END}"
    reference = _REFERENCE.search(Sentence(step).unquoted)
    if reference is not None:
        return step[: reference.start()] + value + step[reference.end() :]
    verb = re.match(r"(?:再)?(multiply|divide|add|subtract)\b", step, re.IGNORECASE)
    if verb is None:
        is_verb_only = re.match(r"[a-z]+\s*[.?!]?\Z", step, re.IGNORECASE)
        return f"{step.rstrip(' .?!')} {value}" if is_verb_only else f"{value} {step.removeprefix('再')}"
    rest = step[verb.end() :].rstrip(" .?!")
    completed = {"add": f"add{rest} to {value}", "subtract": f"subtract{rest} from {value}"}
    return completed.get(verb[1].lower(), f"{verb[1]} {value}{rest}")


def asks_for_nothing(part: str) -> bool:
    """Return whether a sentence asks for nothing: it is a statement, or polite."""
    return _REMARK.match(part) is not None and "?" not in part and "？" not in part


def _split_at_separators(question: str) -> list[str]:
    """At separators that are certain. Quoted text is never split."""
    text = Sentence(question).unquoted
    cuts = list(_SEPARATOR.finditer(text))
    numbers = list(_LIST_NUMBER.finditer(text))
    cuts += numbers if len(numbers) > 1 else []
    parts, at = [], 0
    for cut in sorted(cuts, key=lambda match: match.start()):
        if cut.start() < at or _ABBREVIATION.search(question[: cut.start()]):
            continue
        parts.append(question[at : cut.start()])
        at = cut.end()
    parts.append(question[at:])
    return [part for part in map(_without_conjunctions, parts) if any(map(str.isalnum, part))]


def _split_at_conjunctions(part: str, is_request: Callable[[str], bool]) -> list[str]:
    """At `and` or a comma, if both sides are requests; the second one may refer to the result of the first one."""
    for cut in islice(_POSSIBLE_SEPARATOR.finditer(Sentence(part).unquoted), _MAX_CUTS):
        first, second = _without_conjunctions(part[: cut.start()]), _without_conjunctions(part[cut.end() :])
        completed = insert_result(second, "7") if refers_to_result(second) else second
        if first and second and is_request(first) and is_request(completed):
            return [first, *_split_at_conjunctions(second, is_request)]
    return [part]


def _without_conjunctions(part: str) -> str:
    part = part.strip(" \t\r，,")
    while (shorter := _CONJUNCTION.sub("", part)) != part:
        part = shorter
    return part.strip()
