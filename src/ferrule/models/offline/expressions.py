"""Arithmetic in a sentence: `2**10 + 3`, 15% of 80, twelve times five, 三加五, the square root of 16.

What is found is written with the signs every calculator knows, and only if the calculator in the box can read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ferrule.errors import Retry
from ferrule.executors.calculator.expression import parse
from ferrule.models.offline.numbers import DIGITS, OPERAND, number_of
from ferrule.models.offline.reading import STRUCK, Found

_FUNCTIONS = "sqrt|abs|round|floor|ceil|log10|log2|log|ln|exp|sin|cos|tan|factorial|gcd|lcm|max|min|mean|sum|pow|hypot"
_N = rf"({OPERAND})"
_LIST = rf"({OPERAND}(?:\s*(?:,\s*and|,|、|and|和|与)\s*{OPERAND}){{1,30}}+)"
_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-", "–": "-", "（": "(", "）": ")", "＋": "+", "－": "-", "＊": "*"})

_WORDED: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (rf"(?:the )?sum of {_LIST}", lambda m: _joined(m, " + ")),
    (rf"(?:the )?product of {_LIST}", lambda m: _joined(m, " * ")),
    (rf"(?:the )?(?:average|mean) of {_LIST}", lambda m: f"mean({_joined(m, ', ')})"),
    (rf"(?:the )?(?:maximum|max|largest|biggest) of {_LIST}", lambda m: f"max({_joined(m, ', ')})"),
    (rf"(?:the )?(?:minimum|min|smallest) of {_LIST}", lambda m: f"min({_joined(m, ', ')})"),
    (rf"{_LIST}的(?:总和|和)", lambda m: _joined(m, " + ")),
    (rf"{_LIST}的平均(?:数|值)?", lambda m: f"mean({_joined(m, ', ')})"),
    (rf"\badd(?:ing)? {_N}(?: and| to|, ?) ?{_N}", lambda m: f"{_n(m, 2)} + {_n(m, 1)}" if " to " in m[0] else _sum(m)),
    (rf"\bsubtract(?:ing)? {_N} from {_N}", lambda m: f"{_n(m, 2)} - {_n(m, 1)}"),
    (rf"\bmultipl(?:y|ying) {_N} (?:by|and|with) {_N}", lambda m: f"{_n(m, 1)} * {_n(m, 2)}"),
    (rf"\bdivid(?:e|ing) {_N} by {_N}", lambda m: f"{_n(m, 1)} / {_n(m, 2)}"),
    (rf"(?:the )?(?:square root|sqrt) of {_N}", lambda m: f"sqrt({_n(m, 1)})"),
    (rf"(?:the )?factorial of {_N}", lambda m: f"factorial({_n(m, 1)})"),
    (rf"\b(?:double|twice) (?:of )?{_N}", lambda m: f"{_n(m, 1)} * 2"),
    (rf"\btriple (?:of )?{_N}", lambda m: f"{_n(m, 1)} * 3"),
    (rf"\b(?:halve|half(?: of)?) {_N}", lambda m: f"{_n(m, 1)} / 2"),
    (rf"\b(?:the )?square(?: of)? {_N}", lambda m: f"{_n(m, 1)} ** 2"),
    (rf"{_N}的?(?:平方根|开方)", lambda m: f"sqrt({_n(m, 1)})"),
    (rf"{_N}的?平方", lambda m: f"{_n(m, 1)} ** 2"),
    (rf"{_N}的?阶乘", lambda m: f"factorial({_n(m, 1)})"),
    (rf"{_N}(?:翻倍|的?两倍|的?二倍|加倍)", lambda m: f"{_n(m, 1)} * 2"),
    (rf"{_N}(?:减半|的一半)", lambda m: f"{_n(m, 1)} / 2"),
    (rf"{_N}的{_N}倍", lambda m: f"{_n(m, 1)} * {_n(m, 2)}"),
    (rf"{_N}的((?:{DIGITS})[%％])", lambda m: f"{_n(m, 1)} * {m[2].replace('％', '%')}"),
]
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), write) for pattern, write in _WORDED]

_TOKEN = re.compile(
    rf"""(?P<number>{OPERAND})
      | (?P<sign>\*\*|//|[-+*/^×÷−–＋－＊])
      | (?P<open>(?:(?:{_FUNCTIONS})\s*)?[(（\[]) | (?P<close>[)）\]]) | (?P<comma>,)
      | (?P<percent>[%％]|\bper\ ?cent\b)
      | (?P<of>\bof\b)
      | (?P<plus>\bplus\b|加上|加) | (?P<minus>\bminus\b|减去|减)
      | (?P<power>\b(?:to\ the\ power\ of|raised\ to)\b|的?次方)
      | (?P<times>\b(?:times|multiplied\ by)\b|乘以|乘) | (?P<over>\bdivided\ by\b|除以)
      | (?P<mod>\b(?:mod|modulo)\b)
      | (?P<squared>\bsquared\b) | (?P<cubed>\bcubed\b)
      | (?P<name>\bpi\b)""",
    re.VERBOSE | re.IGNORECASE,
)
_WRITTEN = {
    "of": " * ",
    "plus": " + ",
    "minus": " - ",
    "power": " ** ",
    "times": " * ",
    "over": " / ",
    "mod": " % ",
    "squared": " ** 2",
    "cubed": " ** 3",
    "percent": "%",
}
_NO_ARITHMETIC = re.compile(r"(?<![\d-])\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)|(?<!\d)(?:\d{3}-)?\d{3}-\d{4}(?!\d)")
"""Dates and telephone numbers."""
_MOST_TOKENS = 40
_GLUED_BEFORE = re.compile(r"[A-Za-z0-9_/.\\@#]")
_GLUED_AFTER = re.compile(r"[A-Za-z0-9_/\\@]|\.\w")
_OPERATION = re.compile(r"[-+*/^(]|%\s*\S")


def expression_in(text: str) -> Found | None:
    """The longest arithmetic of a text that a calculator can read."""
    text = _NO_ARITHMETIC.sub(lambda match: STRUCK * len(match.group()), text)
    candidates = [*_worded(text), *_runs(text)]
    return max(candidates, key=lambda found: found.end - found.start, default=None)


def _worded(text: str) -> list[Found]:
    found = []
    for pattern, write in _PATTERNS:
        for match in pattern.finditer(text):
            found.append(Found(write(match), match.start(), match.end()))
    return [one for one in found if _is_readable(one.value)]


def _runs(text: str) -> list[Found]:
    runs: list[list[re.Match[str]]] = []
    end = -1
    for match in _TOKEN.finditer(text):
        if runs and not text[end : match.start()].strip(" ") and _goes_on(runs[-1], match):
            runs[-1].append(match)
        else:
            runs.append([match])
        end = match.end()
    return [found for run in runs if (found := _longest_readable(text, run)) is not None]


def _goes_on(run: list[re.Match[str]], token: re.Match[str]) -> bool:
    """Two numbers in a row are a list, and so are those with a comma between them; but `8-3` is read as 8 and -3."""
    if token.lastgroup == "comma":
        kinds = [match.lastgroup for match in run]
        return kinds.count("open") > kinds.count("close")
    both = run[-1].lastgroup == token.lastgroup == "number"
    return len(run) < _MOST_TOKENS and not (both and not token.group().startswith("-"))


def _longest_readable(text: str, run: list[re.Match[str]]) -> Found | None:
    """A run without what hangs over at its ends: the comma after it, the `of` before it."""
    for length in range(len(run), 1, -1):
        for first in range(len(run) - length + 1):
            part = run[first : first + length]
            start, end = part[0].start(), part[-1].end()
            if _stands_alone(text, start, end):
                written = _written(text, part)
                if _is_readable(written):
                    return Found(written, start, end)
    return None


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Not a piece of a path, a name or a version."""
    return not _GLUED_BEFORE.match(text[max(0, start - 1) : start]) and not _GLUED_AFTER.match(text, end)


def _written(text: str, run: list[re.Match[str]]) -> str:
    if all(match.lastgroup in ("number", "sign", "open", "close", "comma", "percent", "name") for match in run):
        plain = text[run[0].start() : run[-1].end()].translate(_SIGNS).replace("％", "%")
        if re.fullmatch(r"[\x20-\x7e]+", plain) and not re.search(
            r"\b(?!pi\b)[a-z]+\b(?!\s*\()|per ?cent", plain, re.I
        ):
            return re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain) if "(" not in plain else plain
    words = []
    for match in run:
        kind = match.lastgroup or ""
        words.append(_plain(match.group()) if kind == "number" else _WRITTEN.get(kind) or f" {match.group()} ")
    return re.sub(r" +", " ", "".join(words).translate(_SIGNS)).strip()


def _is_readable(expression: str) -> bool:
    if not _OPERATION.search(expression.lstrip("-+ ")):
        return False
    try:
        parse(expression)
    except Retry:
        return False
    return True


def _plain(operand: str) -> str:
    percent = "%" if operand.endswith("%") else ""
    return f"{number_of(operand)}{percent}"


def _n(match: re.Match[str], group: int) -> str:
    return _plain(match[group])


def _sum(match: re.Match[str]) -> str:
    return f"{_n(match, 1)} + {_n(match, 2)}"


def _joined(match: re.Match[str], sign: str) -> str:
    return sign.join(_plain(operand) for operand in re.findall(OPERAND, match[1], re.IGNORECASE))
