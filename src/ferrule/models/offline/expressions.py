"""Arithmetic in a sentence: `2**10 + 3`, 15% of 80, twelve times five, 三加五, the square root of 16.

It is written with the operators that every calculator knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ferrule.core.patterns import lazy_pattern
from ferrule.kinds.builtin import can_calculate
from ferrule.texts.language import SPACE_BESIDE_CHINESE
from ferrule.texts.numbers import CHINESE_INTEGER, NUMBER, ValueSpan, parse_number
from ferrule.texts.phrases import ARITHMETIC_PHRASES
from ferrule.texts.unit_conversion import UNIT

_FUNCTIONS = "sqrt|abs|round|floor|ceil|log10|log2|log|ln|exp|sin|cos|tan|factorial|gcd|lcm|max|min|mean|sum|pow|hypot"
_SYMBOLS = str.maketrans(
    {"×": "*", "÷": "/", "−": "-", "–": "-", "（": "(", "）": ")", "＋": "+", "－": "-", "＊": "*"}
)

_PHRASES = [(lazy_pattern(words, re.IGNORECASE), template, subject) for words, template, subject in ARITHMETIC_PHRASES]
_CURRENCY = lazy_pattern(r"[$€£¥](?=\d)|(?<=\d) ?(?:dollars|euros)\b|(?<=\d)[美欧]?元(?!\d)")
_OPERATORS = {
    **dict.fromkeys(("of", "share", "times"), " * "),
    "half": "(1/2)",
    "plus": " + ",
    "minus": " - ",
    "power": " ** ",
    "over": " / ",
    "mod": " % ",
    "squared": " ** 2",
    "cubed": " ** 3",
    "percent": "%",
    "factorial": "!",
    "round": "",
}
_FRACTIONS = {"third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_TOKEN = lazy_pattern(
    rf"""(?P<fraction>\b(?:an?|one|two|three|four|five)[ -](?:{"|".join(_FRACTIONS)})s?\b
        |{CHINESE_INTEGER}+分之{CHINESE_INTEGER}+)
      | (?P<half>\bhalf(?=\ of)\b)
      | (?P<number>{NUMBER})
      | (?P<symbol>\*\*|//|[-+*/^×÷−–＋－＊])
      | (?P<open>(?:(?:{_FUNCTIONS})\s*)?[(（\[]) | (?P<close>[)）\]]) | (?P<comma>,)
      | (?P<percent>[%％]|\bper\ ?cent\b) | (?P<factorial>!|\bfactorial\b)
      | (?P<of>\bof\b) | (?P<share>的(?=\d+(?:\.\d+)?\ ?[%％]))
      | (?P<plus>\bplus\b|再?加上|再?加) | (?P<minus>\bminus\b|再?减去|再?减)
      | (?P<power>\b(?:to\ the\ power\ of|raised\ to)\b|的?次方)
      | (?P<times>\b(?:times|multiplied\ by)\b|再?乘以|再?乘|(?<!\b0)(?<![A-Za-z])x(?![A-Za-z]))
      | (?P<over>\bdivided\ by\b|再?除以)
      | (?P<mod>\b(?:mod|modulo)\b)
      | (?P<squared>\bsquared\b|的?平方(?![根米公英])) | (?P<cubed>\bcubed\b|的?立方(?![根米]))
      | (?P<round>\bround(?=\ [\d(]))
      | (?P<decimals>\b(?:rounded\ )?to\ \d{{1,3}}\ (?:decimal|digit)(?:\ place)?s?\b|，?保留到?\d{{1,3}}位小数)
      | (?P<name>\bpi\b)""",
    re.VERBOSE | re.IGNORECASE,
)
_NOT_ARITHMETIC = lazy_pattern(r"(?<![\d-])\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)|(?<!\d)(?:\d{3}-)?\d{3}-\d{4}(?!\d)")
"""Dates and telephone numbers."""
_MAX_TOKENS = 40
_ATTACHED_BEFORE = lazy_pattern(r"[A-Za-z0-9_/.\\@#]")
_ATTACHED_AFTER = lazy_pattern(r"[A-Za-z0-9_/\\@]|\.\w")
_OPERATION = lazy_pattern(r"[-+*/^(!]|%\s*\S| to ")


@dataclass(frozen=True, slots=True)
class ExpressionSpan(ValueSpan):
    """Arithmetic that a text contains."""

    subject: str = ""
    """What the answer is about, in the words of the question; after `|` what follows the number."""


def find_expression(text: str) -> ExpressionSpan | None:
    """Return the longest arithmetic expression of a text."""
    text = _NOT_ARITHMETIC.sub(lambda match: "\0" * len(match.group()), text)
    currencies = list(_CURRENCY.finditer(text))
    if len({match.group() for match in currencies}) > 1:
        return None  # it would take an exchange rate
    spaces = SPACE_BESIDE_CHINESE.finditer(text)  # many write `80 的 15%`
    ignored = {at for match in (*currencies, *spaces) for at in range(*match.span())}
    positions = [at for at in range(len(text)) if at not in ignored]
    plain = "".join(text[at] for at in positions)
    candidates = [*_find_phrases(plain.rstrip(" ?？。.")), *_find_token_runs(plain)]
    best = max(candidates, key=lambda expression: expression.end - expression.start, default=None)
    return replace(best, start=positions[best.start], end=positions[best.end - 1] + 1) if best is not None else None


def _find_phrases(text: str) -> list[ExpressionSpan]:
    expressions = []
    for pattern, template, subject in _PHRASES:
        for match in pattern.finditer(text):
            operands = [
                group if re.fullmatch(UNIT, group, re.IGNORECASE) else _join_operands(group, ", ")
                for group in match.groups()
            ]
            lists = {"sum": _join_operands(match[1], " + "), "product": _join_operands(match[1], " * ")}
            expression = template.format(*operands, **lists)
            if _is_arithmetic(expression) and not _ATTACHED_AFTER.match(text, match.end()):
                words = match.group() if subject == "*" else subject.format(*map(str.strip, match.groups()))
                expressions.append(ExpressionSpan(expression, *match.span(), words.strip()))
    return expressions


def _join_operands(text: str, separator: str) -> str:
    return separator.join(_write_number(operand) for operand in re.findall(NUMBER, text, re.IGNORECASE))


def _find_token_runs(text: str) -> list[ExpressionSpan]:
    """Return runs of numbers and operators with nothing but spaces between them."""
    runs: list[list[re.Match[str]]] = []
    end = -1
    for token in _TOKEN.finditer(text):
        if runs and not text[end : token.start()].strip(" ") and _continues_run(runs[-1], token):
            runs[-1].append(token)
        else:
            runs.append([token])
        end = token.end()
    return [expression for run in runs if (expression := _longest_expression(text, run)) is not None]


def _continues_run(run: list[re.Match[str]], token: re.Match[str]) -> bool:
    """Two numbers in a row are a list, and so are numbers separated by a comma; but `8-3` is tokenized as 8 and -3."""
    if token.lastgroup == "comma":
        kinds = [match.lastgroup for match in run]
        return kinds.count("open") > kinds.count("close")
    if token.lastgroup == "of":  # `15% of 80`, `a third of 96`, `3/4 of 20`; not `30 of 120`
        is_part = run[-1].lastgroup in ("percent", "fraction", "half") or run[-1].group().endswith(("%", "％"))
        return is_part or (len(run) > 2 and run[-2].group() == "/")
    both_numbers = run[-1].lastgroup == token.lastgroup == "number"
    return len(run) < _MAX_TOKENS and not (both_numbers and not token.group().startswith("-"))


def _longest_expression(text: str, run: list[re.Match[str]]) -> ExpressionSpan | None:
    """Without tokens at the ends that do not belong to it, such as the `of` before it."""
    for length in range(len(run), 1, -1):
        for first in range(len(run) - length + 1):
            tokens = run[first : first + length]
            start, end = tokens[0].start(), tokens[-1].end()
            # A piece of a path, of a name or of a version is not an expression.
            if _ATTACHED_BEFORE.match(text[max(0, start - 1) : start]) or _ATTACHED_AFTER.match(text, end):
                continue
            expression = _write_tokens(text, tokens)
            if _is_arithmetic(expression):
                return ExpressionSpan(expression, start, end, text[start:end].strip())
    return None


def _write_tokens(text: str, tokens: list[re.Match[str]]) -> str:
    parts, end = [], tokens[0].start()
    decimals = re.search(r"\d+", tokens[-1].group()) if tokens[-1].lastgroup == "decimals" else None
    for token in tokens[:-1] if decimals else tokens:
        kind = token.lastgroup or ""
        parts.append(text[end : token.start()])
        if kind == "fraction":
            count, part = (
                re.split("[ -]", token.group().lower()) if "分" not in token[0] else token[0].split("分之")[::-1]
            )
            parts.append(f"({parse_number(count) or 1}/{_FRACTIONS.get(part.removesuffix('s')) or parse_number(part)})")
        else:
            parts.append(_write_number(token.group()) if kind == "number" else _OPERATORS.get(kind, token.group()))
        end = token.end()
    text = re.sub(" +", " ", "".join(parts).translate(_SYMBOLS)).strip()
    if decimals:
        return f"round({text}, {decimals[0]})"
    return re.sub(r"([\d.]+%)(?= [-+])", r"(\1)", text)  # a calculator may take `% -` for a remainder


def _write_number(text: str) -> str:
    return f"{parse_number(text.replace('％', '%'))}{'%' if text.endswith(('%', '％')) else ''}"


def _is_arithmetic(expression: str) -> bool:
    return bool(_OPERATION.search(expression.lstrip("-+ "))) and can_calculate(expression)
