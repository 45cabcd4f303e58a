"""Arithmetic in a sentence: `2**10 + 3`, 15% of 80, a 15% tip on 64, twelve times five, 三加五, the square root of 16.

It is written with the operators that every calculator knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ferrule.core.patterns import lazy_pattern
from ferrule.kinds.builtin.calculator import can_calculate
from ferrule.texts.amounts import Amount, find_amounts
from ferrule.texts.language import SPACE_BESIDE_CHINESE
from ferrule.texts.numbers import CHINESE_ARTICLE, CHINESE_INTEGER, DIGITS, NUMBER, ValueSpan, parse_number
from ferrule.texts.phrases import ARITHMETIC_PHRASES, NO_WORD_PROBLEM, WORD_PROBLEMS, is_chinese_phrase
from ferrule.texts.unit_conversion import UNIT

_FUNCTIONS = "sqrt|abs|round|floor|ceil|log10|log2|log|ln|exp|sin|cos|tan|factorial|gcd|lcm|max|min|mean|sum|pow|hypot"
_SYMBOLS = str.maketrans(
    {"×": "*", "÷": "/", "−": "-", "–": "-", "（": "(", "）": ")", "＋": "+", "－": "-", "＊": "*"}
)

_PHRASES = [
    (lazy_pattern(pattern, re.IGNORECASE), is_chinese_phrase(pattern), template, subject)
    for pattern, template, subject in ARITHMETIC_PHRASES
]
_WORD_PROBLEMS = [(lazy_pattern(words, re.IGNORECASE), template, subject) for words, template, subject in WORD_PROBLEMS]
_QUANTITY = lazy_pattern(
    rf"打?(?P<discount>[1-9]\.?\d?|[一二三四五六七八九]{{1,2}})折|百分之(?P<chinese>{NUMBER})"
    rf"|(?P<percent>{DIGITS}) ?(?:[%％]|per ?cent\b)|(?P<number>{NUMBER})(?: ?pounds?\b)?",
    re.IGNORECASE,
)
_MAX_PROBLEM_LENGTH = 120
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
      | (?P<name>\bpi\b)""",
    re.VERBOSE | re.IGNORECASE,
)
_NOT_ARITHMETIC = lazy_pattern(r"(?<![\d-])\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)|(?<!\d)(?:\d{3}-)?\d{3}-\d{4}(?!\d)")
"""Dates and telephone numbers."""
_OF_LISTS = ("{sum}", "{product}", "mean(", "max({0})", "min({0})")
"""What other tools may do as well."""
_MAX_TOKENS = 40
_ATTACHED_BEFORE = lazy_pattern(r"[A-Za-z0-9_/.\\@#]")
_ATTACHED_AFTER = lazy_pattern(r"[A-Za-z0-9_/\\@]|\.\w")
_OPERATION = lazy_pattern(r"[-+*/^(!<>=]|%\s*\S| to ")


@dataclass(frozen=True, slots=True)
class ExpressionSpan(ValueSpan):
    """Arithmetic that a text contains."""

    subject: str = ""
    """What the answer is about, in the words of the question; after `|` what follows the number."""
    is_phrase: bool = False
    """Whether words of the text say what to compute, so that other words do not matter: `a 15% tip on 64`."""
    is_word_problem: bool = False
    """Whether these words are anywhere in the text: a tool that fits them better is preferred."""


def find_expression(text: str) -> ExpressionSpan | None:
    """The longest arithmetic expression of a text."""
    text = _NOT_ARITHMETIC.sub(lambda match: "\0" * len(match.group()), text)
    amounts = find_amounts(text)
    if len({amount.currency for amount in amounts}) > 1:
        return None  # it would take an exchange rate
    spaces = {match.start() for match in SPACE_BESIDE_CHINESE.finditer(text)}  # many write `80 的 15%`
    positions = [
        at for at in range(len(text)) if at not in spaces and not any(at in amount.currency_span for amount in amounts)
    ]
    plain = "".join(text[at] for at in positions)
    candidates = [*_find_word_problems(plain), *_find_phrases(plain.rstrip(" ?？。.")), *_find_token_runs(plain)]
    best = max(candidates, key=lambda expression: expression.end - expression.start, default=None)
    if best is None:
        return None
    best = replace(best, start=positions[best.start], end=positions[best.end - 1] + 1)
    return _with_currency(best, amounts) if amounts else best


def _with_currency(expression: ExpressionSpan, amounts: list[Amount]) -> ExpressionSpan:
    """The expression with its amounts as they were written, and with the unit of its result."""
    subject, start, end = expression.subject, expression.start, expression.end
    amounts = [amount for amount in amounts if amount.start < end and start < amount.end]
    for amount in amounts:
        names = "|".join(map(re.escape, (amount.number, str(parse_number(amount.number)))))
        pattern = rf"(?<![\d.{amount.currency}])(?:{names})(?![\d.%])"
        subject = re.sub(pattern, str(amount), subject, count=0 if "‖" in subject else 1)
        start, end = min(start, amount.start), max(end, amount.end)
    is_amount = "|" not in subject and (len(amounts) == 1 or not re.search("[*/]", expression.value))
    subject += f"|{amounts[0].currency}" if subject and amounts and is_amount else ""
    return replace(expression, subject=subject, start=start, end=end)


def _find_phrases(text: str) -> list[ExpressionSpan]:
    expressions = []
    is_ascii = text.isascii()
    for pattern, is_chinese, template, subject in _PHRASES:
        if is_chinese and is_ascii:
            continue
        for match in pattern.finditer(text):
            operands = [_write_operand(group) for group in match.groups()]
            expression = template.format(*operands, **_compound_operands(match, operands))
            if _is_arithmetic(expression) and not _ATTACHED_AFTER.match(text, match.end()):
                words = match.group() if subject == "*" else subject.format(*map(str.strip, match.groups()))
                words = re.sub(r"(?<= to )(1|one) decimals", r"\1 decimal", words.strip())
                is_phrase = bool(subject) and not template.startswith(_OF_LISTS)
                expressions.append(ExpressionSpan(expression, *match.span(), words, is_phrase))
    return expressions


def _find_word_problems(text: str) -> list[ExpressionSpan]:
    """A question with two numbers, in any order, whose words say what to do with them."""
    shares: list[str] = []
    numbers: list[str] = []
    words, at = "", 0
    text = CHINESE_ARTICLE.sub("某", text) if len(text) <= _MAX_PROBLEM_LENGTH else ""
    for match in _QUANTITY.finditer(text):
        kind, value = match.lastgroup or "", str(match[match.lastgroup or 0])
        number = parse_number(value)
        if value.lower() == "one" or number is None:
            continue
        discount = number / 10 if kind == "discount" and number > 10 else number
        (numbers if kind == "number" else shares).append(f"{discount:g}" if kind == "discount" else str(number))
        words += text[at : match.start()] + {"number": "#", "discount": "&"}.get(kind, "%")
        at = match.end()
    words += text[at:]
    if len(shares) + len(numbers) != 2 or not numbers or NO_WORD_PROBLEM.search(words):
        return []
    for pattern, template, subject in _WORD_PROBLEMS:
        if bool(shares) == ("%" in template) and pattern.search(words):
            operands = shares + numbers
            subject = re.sub(r"\ba (?=(?:8|11|18)[\d.]*%)", "an ", subject.format(*operands))
            return [ExpressionSpan(template.format(*operands), 0, len(text), subject, True, True)]
    return []


def _compound_operands(match: re.Match[str], operands: list[str]) -> dict[str, str]:
    """The operands that a template names: all numbers of a list, amounts of money, numbers of decimals."""
    places = operands[1] if len(operands) > 1 else "0"
    return {
        "sum": _join_operands(match[1], " + "),
        "product": _join_operands(match[1], " * "),
        "decimals": f"floor(({operands[0]}) * 10 ** {places} + 0.5) / 10 ** {places}",
    }


def _write_operand(text: str) -> str:
    named = {"ten": "10", "hundred": "100", "thousand": "1000"}.get(text.lower())
    if named or re.fullmatch(UNIT, text, re.IGNORECASE):
        return named or text
    if re.fullmatch(rf"(?:{NUMBER}|[\s,、]|and|和|与)+", text, re.IGNORECASE):
        return _join_operands(text, ", ")
    expression = find_expression(text)  # a side of a comparison
    return expression.value if expression is not None and expression.end - expression.start == len(text) else ""


def _join_operands(text: str, separator: str) -> str:
    return separator.join(_write_number(operand) for operand in re.findall(NUMBER, text, re.IGNORECASE))


def _find_token_runs(text: str) -> list[ExpressionSpan]:
    """Runs of numbers and operators with nothing but spaces between them."""
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
    for token in tokens:
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
    return re.sub(r"([\d.]+%)(?= [-+])", r"(\1)", text)  # a calculator may take `% -` for a remainder


def _write_number(text: str) -> str:
    return f"{parse_number(text.replace('％', '%'))}{'%' if text.endswith(('%', '％')) else ''}"


def _is_arithmetic(expression: str) -> bool:
    return bool(_OPERATION.search(expression.lstrip("-+ "))) and can_calculate(expression)
