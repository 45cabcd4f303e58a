"""The calculator's grammar: from text to a syntax tree.

    comparison := sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum        := product (("+" | "-") product)*
    product    := signed (("*" | "/" | "//" | "%") signed)*
    signed     := ("+" | "-") signed | power
    power      := percent [("**" | "^") signed]
    percent    := primary "%"*
    primary    := number | name | name "(" [arguments] ")" | "(" sum ")"
    arguments  := sum ("," sum)* | "[" sum ("," sum)* "]"

It is Python's arithmetic, with `^` as a second way to write a power, `%` after a number as percent, and the
full-width and typographic signs people paste (`（１２＋３）×４÷５`). Chains such as `1 + 2 + 3` are one node, so a
long sum does not make a deep tree; what is nested is limited by `MAX_DEPTH`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, TypeAlias

from ferrule.errors import Retry

MAX_LENGTH = 1_000
MAX_DEPTH = 32
MAX_DIGITS = 4_000
"""Of a number as it is written (`1e5000` has 5,001) and of every number on the way to the result."""


@dataclass(frozen=True, slots=True)
class Number:
    value: int | Fraction


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Negative:
    operand: Node


@dataclass(frozen=True, slots=True)
class Percent:
    operand: Node
    times: int


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """`first`, then one operation after the other, from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


Node: TypeAlias = Number | Name | Call | Negative | Percent | Power | Chain


@dataclass(frozen=True, slots=True)
class Comparison:
    """Only ever at the top of a tree: its value is no number."""

    left: Node
    operator: str
    right: Node


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`number`, `name`, `end`, `percent` (a `%` after a number), or the sign itself."""
    text: str
    at: int


_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_TYPOGRAPHIC = str.maketrans(
    {"×": "*", "⋅": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "≤": "<=", "≥": ">=", "≠": "!="}
)
_SIGNS = _FULL_WIDTH | _TYPOGRAPHIC | {0x3000: " ", ord("、"): ",", ord("π"): " pi ", ord("【"): "[", ord("】"): "]"}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>0[xX][0-9a-fA-F]+ | 0[oO][0-7]+ | 0[bB][01]+ | (?:\d[\d_]*\.?\d* | \.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%^()\[\],<>])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_AFTER_PERCENT = _COMPARISONS | {"end", ")", "]", ",", "*", "/", "//", "%", "**", "^"}


def parse(text: str) -> Node | Comparison:
    """The tree of an expression; `Retry` says what is wrong with one that has none."""
    if len(text) > MAX_LENGTH:
        raise Retry(
            f"the expression has {len(text):,} characters, at most {MAX_LENGTH:,} are allowed. "
            "Split it into several calls."
        )
    return _Parser(_mark_percent(_tokens(text.translate(_SIGNS)))).whole()


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, at)
        if match is None:
            found = text[at:].lstrip(" \t\n\r\f\v")[0]  # what \s means in ASCII
            raise Retry(
                f"{found!r} is not allowed in an expression. It is made of numbers, + - * / // % ** ( ), "
                "comparisons and functions such as sqrt(2)."
            )
        kind = match.lastgroup or "end"
        word = match.group(kind)
        tokens.append(_Token(word if kind == "sign" else kind, word, match.start(kind)))
        at = match.end()
    return tokens


def _mark_percent(tokens: list[_Token]) -> list[_Token]:
    """Tell `15%` from `15 % 4` by what follows."""
    marked = []
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.kind == "%" and following.kind in ("+", "-"):
            raise Retry(
                f"'%{following.kind}' can be read in two ways. Write (10%){following.kind}5 for percent, "
                f"or mod(10, {following.kind}5) for the remainder."
            )
        is_percent = token.kind == "%" and following.kind in _AFTER_PERCENT
        marked.append(_Token("percent", "%", token.at) if is_percent else token)
    return marked


class _Parser:
    """One method per line of the grammar."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def whole(self) -> Node | Comparison:
        if self._token.kind == "end":
            raise Retry("the expression is empty. Write something like 2 * (3 + 4).")
        tree = self._comparison()
        if self._token.kind != "end":
            self._refuse_rest()
        return tree

    def _comparison(self) -> Node | Comparison:
        left = self._sum()
        if self._token.kind not in _COMPARISONS:
            return left
        operator = self._take().kind
        return Comparison(left, operator, self._sum())

    def _sum(self) -> Node:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> Node:
        return self._chain(self._signed, ("*", "/", "//", "%"))

    def _chain(self, part: Callable[[], Node], operators: tuple[str, ...]) -> Node:
        first = part()
        rest = []
        while self._token.kind in operators:
            operator = self._take().kind
            rest.append((operator, part()))
        return Chain(first, tuple(rest)) if rest else first

    def _signed(self) -> Node:
        # Whatever is nested, signs, powers, brackets or calls, comes through here; but for percents.
        self._depth += 1
        _refuse_deeper(self._depth)
        if self._token.kind in ("+", "-"):
            sign = self._take().kind
            operand = self._signed()
            tree = Negative(operand) if sign == "-" else operand
        else:
            tree = self._power()
        self._depth -= 1
        return tree

    def _power(self) -> Node:
        base = self._percent()
        if self._token.kind not in ("**", "^"):
            return base
        self._take()
        return Power(base, self._signed())

    def _percent(self) -> Node:
        tree = self._primary()
        times = 0
        while self._token.kind == "percent":
            self._take()
            times += 1
            _refuse_deeper(self._depth + times)
        return Percent(tree, times) if times else tree

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "number":
            return Number(_number(token.text))
        if token.kind == "name":
            return Call(token.text, self._arguments()) if self._token.kind == "(" else Name(token.text)
        if token.kind != "(":
            found = "the expression ends" if token.kind == "end" else f"there is {token.text!r}"
            raise Retry(f"at character {token.at + 1} a number is missing: {found} instead.")
        tree = self._sum()
        self._expect(")")
        return tree

    def _arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        if self._token.kind == ")":
            self._take()
            return ()
        as_list = self._token.kind == "["
        if as_list:
            self._take()
        arguments = [self._sum()]
        while self._token.kind == ",":
            self._take()
            arguments.append(self._sum())
        if as_list:
            self._expect("]")
        self._expect(")")
        return tuple(arguments)

    def _take(self) -> _Token:
        token = self._token
        if token.kind != "end":
            self._next += 1
        return token

    def _expect(self, kind: str) -> None:
        if self._token.kind != kind:
            found = "the expression ends" if self._token.kind == "end" else f"there is {self._token.text!r}"
            raise Retry(f"at character {self._token.at + 1} {kind!r} is missing: {found} instead.")
        self._take()

    def _refuse_rest(self) -> NoReturn:
        token = self._token
        if token.kind == ",":
            raise Retry("a comma only separates the arguments of a function. Write 1234 or 1_234 instead of 1,234.")
        if token.kind in ("number", "name", "("):
            raise Retry(
                f"at character {token.at + 1} an operator is missing before {token.text!r}. "
                "Write 2*(3+4) instead of 2(3+4); words are not understood."
            )
        if token.kind in _COMPARISONS:
            raise Retry("only two values can be compared in one expression, such as 1/3 < 0.34.")
        raise Retry(f"at character {token.at + 1} there is {token.text!r}, which has no meaning there.")


def _refuse_deeper(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Retry(f"the expression is nested more than {MAX_DEPTH} levels deep. Split it into several calls.")


def _number(text: str) -> int | Fraction:
    digits = text.replace("_", "")
    if digits[:2].lower() in ("0x", "0o", "0b"):
        return int(digits, 0)
    mantissa, _, exponent = digits.lower().partition("e")
    # The digits of 1e999999 must not be made before anybody has looked at how many they are.
    if exponent and len(mantissa) + abs(int(exponent)) > MAX_DIGITS:
        raise Retry(f"{text} has more than {MAX_DIGITS:,} digits, which is more than the calculator computes.")
    value = Fraction(digits)
    return value.numerator if value.denominator == 1 else value
