"""The calculator: exact arithmetic on an expression that a model or a user writes.

An expression is Python's arithmetic, with `^` as a second way to write a power, `x` for times, `%` after a number as
percent, `!` as factorial, and the full-width and typographic signs people paste (`（１２＋３）×４÷５`). It may end with
units: `10 miles to km`. It is checked token by token, translated to
Python and parsed by `ast`; the tree is evaluated here. Nothing a caller writes is ever run as code.

Whole numbers and decimals are exact, and so is everything computed from them by + - * / // % and whole powers: 0.1 +
0.2 is 0.3. Irrational roots, logarithms, trigonometry, fractional powers and powers of decimals with too many digits
are floating point. Every size is bounded before anything is computed: the length and depth of the expression, and the
digits of every number.
"""

from __future__ import annotations

import ast
import decimal
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, TypeAlias

from ferrule.core.call import Invocation
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry
from ferrule.texts.unit_conversion import UNIT, convert_units

MAX_LENGTH = 1_000
MAX_DEPTH = 32
MAX_DIGITS = 4_000
"""Applies to a number as it is written (`1e5000` has 5,001) and to every intermediate result."""
MAX_BITS = int(MAX_DIGITS * math.log2(10))
_PRECISE = decimal.Context(prec=60, Emax=9_999, Emin=-9_999, traps=[decimal.Overflow, decimal.InvalidOperation])

Value: TypeAlias = int | Fraction | float


class CalculatorExecutor:
    """Returns `{"result": 0.3}` for `{"expression": "0.1 + 0.2"}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        return {"result": calculate(str(invocation.params["expression"]))}


def calculate(expression: str) -> int | float | bool:
    """The value of an expression, exact where possible; `Retry` explains what is wrong with it."""
    conversion = _match_conversion(expression)
    if conversion is not None:
        return _convert(conversion)
    return as_json_number(_evaluate(expression))


def _evaluate(expression: str) -> Value:
    text, numbers = _translate_to_python(expression)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):  # _translate_to_python should have refused it
        raise Retry("the expression cannot be read. Write something like 2 * (3 + 4).") from None
    evaluation = _ExpressionEvaluator(numbers)
    if isinstance(tree, ast.Compare):
        return _COMPARISON_FUNCTIONS[type(tree.ops[0])](
            evaluation.value(tree.left), evaluation.value(tree.comparators[0])
        )
    return evaluation.value(tree)


_CONVERSION = lazy_pattern(
    rf"\s*(?P<value>.*?[\d)])\s*(?P<unit>{UNIT})(?:\s+(?P<more>\d+(?:\.\d+)?)\s*(?P<small_unit>{UNIT}))?"
    rf"\s+(?:to|in|into|as)\s+(?P<to>{UNIT})\s*",
    re.IGNORECASE,
)
"""`10 miles to km`, `5 feet 10 inches to cm`."""


def _match_conversion(text: str) -> re.Match[str] | None:
    return _CONVERSION.fullmatch(text) if len(text) <= MAX_LENGTH else None


def _convert(conversion: re.Match[str]) -> int | float:
    value, unit, to_unit = Fraction(_evaluate(conversion["value"])), conversion["unit"], conversion["to"]
    try:
        if conversion["more"]:
            value += convert_units(Fraction(conversion["more"]), conversion["small_unit"], unit)
        return as_json_number(_normalize_number(convert_units(value, unit, to_unit)))
    except ValueError as error:
        raise Retry(f"{unit} cannot be converted to {to_unit}: {error}.") from None


def can_calculate(text: str) -> bool:
    """Whether `calculate` can read the text; it may still fail, for instance with a division by zero."""
    conversion = _match_conversion(text)
    try:
        _translate_to_python(text if conversion is None else conversion["value"])
        if conversion is not None:
            convert_units(Fraction(0), conversion["unit"], conversion["to"])
    except (Retry, ValueError):
        return False
    return True


# From text to Python


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`number`, `name`, `end`, `percent` (a `%` after a number), or the sign itself."""
    text: str
    start: int


_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_TYPOGRAPHIC = str.maketrans(
    {"×": "*", "⋅": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "≤": "<=", "≥": ">=", "≠": "!="}
)
_SIGN_REPLACEMENTS = (
    _FULL_WIDTH | _TYPOGRAPHIC | {0x3000: " ", ord("、"): ",", ord("π"): " pi ", ord("【"): "[", ord("】"): "]"}
)

_TIMES = lazy_pattern(r"(?<=[\d)%!])(?<!\b0)\s*[xX]\s*(?=[\d.(])|(?<=[\d)%!]) [xX] (?=[A-Za-z])")
"""`3 x 4`, but not the hexadecimal `0x4`."""
_TOKEN = lazy_pattern(
    r"""\s*(?:
        (?P<number>0[xX][0-9a-fA-F]+ | 0[oO][0-7]+ | 0[bB][01]+ | (?:\d[\d_]*\.?\d* | \.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%^()\[\],<>!])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_POWERS = frozenset({"**", "^"})
_OPERATORS = frozenset({"+", "-", "*", "/", "//", "%"})
_AFTER_PERCENT = _COMPARISONS | _POWERS | {"end", ")", "]", ",", "*", "/", "//", "%", "!"}


def _translate_to_python(expression: str) -> tuple[str, list[Value]]:
    """The expression as Python, and its numbers. In the text every number is its position in that list, because
    `ast` would read 0.1 as floating point; names end with `_`, so that none is a keyword; `x%` is `x .percent`
    and `x!` is `x .factorial`.
    """
    if len(expression) > MAX_LENGTH:
        raise Retry(
            f"the expression has {len(expression):,} characters, at most {MAX_LENGTH:,} are allowed. "
            "Split it into several calls."
        )
    tokens = _mark_percent(_tokenize(_TIMES.sub("*", expression.translate(_SIGN_REPLACEMENTS))))
    _SyntaxChecker(tokens).run()
    numbers: list[Value] = []
    words: list[str] = []
    for token in tokens[:-1]:
        if token.kind == "number":
            words.append(str(len(numbers)))
            numbers.append(_parse_number(token.text))
        elif token.kind == "name":
            words.append(f"{token.text}_")
        else:
            words.append({"percent": ".percent", "!": ".factorial", "^": "**"}.get(token.kind, token.text))
    return " ".join(words), numbers


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    start = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, start)
        if match is None:
            character = text[start:].lstrip(" \t\n\r\f\v")[0]  # what \s means in ASCII
            raise Retry(
                f"{character!r} is not allowed in an expression. It is made of numbers, + - * / // % ** ( ), "
                "comparisons and functions such as sqrt(2)."
            )
        kind = match.lastgroup or "end"
        word = match.group(kind)
        tokens.append(_Token(word if kind == "sign" else kind, word, match.start(kind)))
        start = match.end()
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
        marked.append(_Token("percent", "%", token.start) if is_percent else token)
    return marked


def _parse_number(text: str) -> int | Fraction:
    digits = text.replace("_", "")
    if digits[:2].lower() in ("0x", "0o", "0b"):
        return int(digits, 0)
    mantissa, _, exponent = digits.lower().partition("e")
    # 1e999999 must be refused before its digits are computed.
    if exponent and len(mantissa) + abs(int(exponent)) > MAX_DIGITS:
        raise Retry(f"{text} has more than {MAX_DIGITS:,} digits, which is more than the calculator computes.")
    value = Fraction(digits)
    return value.numerator if value.denominator == 1 else value


class _SyntaxChecker:
    """Refuses an invalid expression, with the position of the first mistake; Python's messages do not know our signs.

    In every place either an operand or an operator is expected; open brackets are on a stack. Lists are allowed only
    as the single argument of a function: `sum([1, 2])`.
    """

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._open: list[str] = []
        """`(`, `f(` for the arguments of a function, or `[`."""
        self._nesting = [1]
        """Per open bracket: one, and one for each sign and power that the next operand is nested in."""
        self._is_compared = False

    def run(self) -> None:
        if self._tokens[0].kind == "end":
            raise Retry("the expression is empty. Write something like 2 * (3 + 4).")
        expects_operand, percents = True, 0
        before = _Token("", "", 0)
        for token in self._tokens:
            percents = percents + 1 if token.kind in ("percent", "!") else 0
            expects_operand = (
                self._take_operand(token, before) if expects_operand else self._take_operator(token, before)
            )
            if sum(self._nesting) + percents > MAX_DEPTH:
                raise Retry(f"the expression is nested more than {MAX_DEPTH} levels deep. Split it into several calls.")
            before = token

    def _take_operand(self, token: _Token, before: _Token) -> bool:
        """Take a token where a number is expected; returns whether one is still expected afterwards."""
        is_first_argument = before.kind == "(" and self._open[-1:] == ["f("]
        if token.kind in ("number", "name"):
            return False
        if token.kind in ("+", "-"):
            self._nesting[-1] += 1
        elif token.kind == "(" or (token.kind == "[" and is_first_argument):
            self._enter_bracket(token.kind)
        elif token.kind == ")" and is_first_argument:
            self._leave_bracket()
            return False
        else:
            self._refuse(token, "a number")
        return True

    def _take_operator(self, token: _Token, before: _Token) -> bool:
        """Take a token after an operand; returns whether an operand is expected next."""
        if before.kind == "]" and token.kind != ")":
            self._refuse(token, "')'")
        if token.kind == "(" and before.kind == "name":
            self._enter_bracket("f(")
        elif token.kind in _POWERS:
            self._nesting[-1] += 1
        elif token.kind in _OPERATORS or (token.kind == "," and self._open[-1:] in (["f("], ["["])):
            self._nesting[-1] = 1
        elif token.kind in _COMPARISONS and not self._open and not self._is_compared:
            self._is_compared, self._nesting[-1] = True, 1
        elif token.kind in ("percent", "!") or (token.kind == "end" and not self._open):
            return False
        elif token.kind == (self._closing_bracket() if self._open else None):
            self._leave_bracket()
            return False
        else:
            self._refuse_operator(token)
        return True

    def _enter_bracket(self, bracket: str) -> None:
        self._open.append(bracket)
        self._nesting.append(1)

    def _leave_bracket(self) -> None:
        self._open.pop()
        self._nesting.pop()

    def _closing_bracket(self) -> str:
        return "]" if self._open[-1] == "[" else ")"

    def _refuse_operator(self, token: _Token) -> NoReturn:
        if token.kind in ("number", "name", "("):
            raise Retry(
                f"at character {token.start + 1} an operator is missing before {token.text!r}. "
                "Write 2*(3+4) instead of 2(3+4); words are not understood."
            )
        if self._open:
            self._refuse(token, repr(self._closing_bracket()))
        if token.kind == ",":
            raise Retry("a comma only separates the arguments of a function. Write 1234 or 1_234 instead of 1,234.")
        if token.kind in _COMPARISONS:
            raise Retry("only two values can be compared in one expression, such as 1/3 < 0.34.")
        raise Retry(f"at character {token.start + 1} there is {token.text!r}, which has no meaning there.")

    def _refuse(self, token: _Token, missing: str) -> NoReturn:
        actual = "the expression ends" if token.kind == "end" else f"there is {token.text!r}"
        raise Retry(f"at character {token.start + 1} {missing} is missing: {actual} instead.")


# Evaluation


class _ExpressionEvaluator:
    """Computes the value of a parsed expression. `MAX_DEPTH` limits its nesting, except for sums and products."""

    def __init__(self, numbers: list[Value]) -> None:
        self._numbers = numbers

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int(index)):
                return self._numbers[index]
            case ast.Name(id=name):
                return _look_up_constant(name[:-1])
            case ast.UnaryOp(op=op, operand=operand):
                return -self.value(operand) if isinstance(op, ast.USub) else self.value(operand)
            case ast.Attribute(value=operand, attr="factorial"):
                return compute_or_retry("!", _factorial, self.value(operand))
            case ast.Attribute(value=operand):
                return compute_or_retry("%", divide, self.value(operand), 100)
            case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
                return compute_or_retry("the power", power, self.value(base), self.value(exponent))
            case ast.BinOp():
                return self._evaluate_chain(node)
            case ast.Call(func=ast.Name(id=name), args=[ast.List(elts=arguments)] | arguments):
                return _call_function(name[:-1], [self.value(argument) for argument in arguments])
        raise Retry("the expression cannot be read. Write something like 2 * (3 + 4).")

    def _evaluate_chain(self, node: ast.expr) -> Value:
        """`1 + 2 + 3 + …` is a tree as deep as it is long: a loop instead of recursion."""
        steps: list[tuple[ast.operator, ast.expr]] = []
        while isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
            steps.append((node.op, node.right))
            node = node.left
        total = self.value(node)
        for op, operand in reversed(steps):
            sign, function = _ARITHMETIC_FUNCTIONS[type(op)]
            total = compute_or_retry(repr(sign), function, total, self.value(operand))
        return total


def _look_up_constant(name: str) -> float:
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in FUNCTIONS:
        raise Retry(f"{name!r} is a function: write {name}(…) with its arguments in brackets.")
    raise Retry(f"{name!r} is not known.{did_you_mean(name, [*CONSTANTS, *FUNCTIONS])} {_AVAILABLE_NAMES}")


def _call_function(name: str, arguments: list[Value]) -> Value:
    function = FUNCTIONS.get(name)
    if function is None:
        raise Retry(f"there is no function {name!r}.{did_you_mean(name, FUNCTIONS)} {_AVAILABLE_NAMES}")
    count, low, high = len(arguments), function.min_arguments, function.max_arguments
    if count < low or (high is not None and count > high):
        needed = f"at least {low}" if high is None else f"{low}" if high == low else f"{low} to {high}"
        raise Retry(f"{name} takes {needed} argument(s), not {count}. Thousands are written 1234, not 1,234.")
    return compute_or_retry(name, function.compute, *arguments)


# Arithmetic


@dataclass(frozen=True, slots=True)
class _MathFunction:
    compute: Callable[..., Value]
    min_arguments: int = 1
    max_arguments: int | None = 1
    """None: any number."""


def compute_or_retry(what: str, function: Callable[..., Any], *operands: Value) -> Value:
    """The result of an operation, or a `Retry` that says why there is none."""
    try:
        return _normalize_number(function(*operands))
    except ZeroDivisionError:
        raise Retry("this divides by zero.") from None
    except OverflowError:
        raise Retry(f"{what} is too large for a floating point number.") from None
    except ValueError:
        values = ", ".join(_shorten_number(operand) for operand in operands)
        raise Retry(f"{what} is not defined for {values}.") from None


def divide(a: Value, b: Value) -> Value:
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def power(base: Value, exponent: Value) -> Value:
    if isinstance(base, float) or not isinstance(exponent, int):
        # A negative base gives a complex number, which the calculator does not support.
        result: Any = float(base) ** float(exponent)
        if isinstance(result, complex):
            raise ValueError
        return float(result)
    fraction = Fraction(base)
    bits = max(fraction.numerator.bit_length(), fraction.denominator.bit_length())
    if isinstance(base, Fraction) and (bits - 1) * abs(exponent) > MAX_BITS:
        return _approximate_power(base, exponent)
    _refuse_too_many_bits((bits - 1) * abs(exponent))
    return fraction**exponent


def _approximate_power(base: Fraction, exponent: int) -> float:
    """The floating point number nearest to a power with too many digits to be exact, such as 1.01**10000."""
    with decimal.localcontext(_PRECISE) as context:
        try:
            result = float(context.power(context.divide(base.numerator, base.denominator), exponent))
        except (decimal.Overflow, decimal.InvalidOperation):
            raise OverflowError from None
    if result == 0.0:
        raise Retry(f"{_shorten_number(base)} to the power of {_shorten_number(exponent)} is too small for a number.")
    return result


def as_json_number(value: Value) -> int | float:
    """The value as JSON has it: whole numbers with all digits, others as the nearest floating point number."""
    if not isinstance(value, Fraction):
        return value
    try:
        nearest = float(value)
    except OverflowError:
        raise Retry("the result is too large for a decimal number. Use floor(…) to get it as a whole one.") from None
    if nearest == 0.0:
        raise Retry("the result is too small for a decimal number. Use log10(…), or multiply it first.")
    return nearest


def _normalize_number(value: Value) -> Value:
    """Whole fractions become integers, minus zero becomes zero; values that are too large or NaN are refused."""
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError
        if math.isinf(value):
            raise OverflowError
        return value or 0.0
    _refuse_too_many_bits(max(value.numerator.bit_length(), value.denominator.bit_length()))
    return value.numerator if value.denominator == 1 else value


def _refuse_too_many_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise Retry(
            f"a number would get more than {MAX_DIGITS:,} digits, which is more than the calculator computes. "
            "Use smaller numbers, or logarithms: 1000*log10(9) instead of log10(9**1000)."
        )


def _shorten_number(value: Value) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}…"


def _require_whole(value: Value) -> int:
    if isinstance(value, Fraction) or (isinstance(value, float) and not value.is_integer()):
        raise Retry(
            f"{_shorten_number(value)} is not a whole number, which is needed here. Use round(…) or floor(…) first."
        )
    return int(value)


def _sum(*values: Value) -> Value:
    total: Value = 0
    for value in values:
        total = _normalize_number(total + value)
    return total


def _mean(*values: Value) -> Value:
    return divide(_sum(*values), len(values))


def _round(value: Value, digits: Value = 0) -> Value:
    places = _require_whole(digits)
    if abs(places) > MAX_DIGITS:
        raise Retry(f"round can keep at most {MAX_DIGITS:,} digits, not {_shorten_number(places)}.")
    if isinstance(value, float) and places:
        return round(value, places)
    return round(Fraction(value), places)


def _sqrt(value: Value) -> Value:
    if isinstance(value, float) or value < 0:
        return math.sqrt(value)
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else math.sqrt(value)


def _factorial(value: Value) -> int:
    n = _require_whole(value)
    _refuse_too_many_bits(_log2_factorial(n))
    return math.factorial(n)


def _comb(total: Value, chosen: Value) -> int:
    n, k = _require_whole(total), _require_whole(chosen)
    if 0 <= k <= n:
        k = min(k, n - k)
        _refuse_too_many_bits(_log2_perm(n, k) - _log2_factorial(k))
    return math.comb(n, k)


def _perm(total: Value, chosen: Value) -> int:
    n, k = _require_whole(total), _require_whole(chosen)
    if 0 <= k <= n:
        _refuse_too_many_bits(_log2_perm(n, k))
    return math.perm(n, k)


def _log2_factorial(n: int) -> float:
    """An estimate of the number of bits, also for numbers that lgamma does not accept."""
    return 0.0 if n < 2 else math.lgamma(min(n, 10**12) + 1) / math.log(2)


def _log2_perm(n: int, k: int) -> float:
    if n < 10**12:
        return _log2_factorial(n) - _log2_factorial(n - k)
    return k * math.log2(n)


def _gcd(*values: Value) -> int:
    return math.gcd(*map(_require_whole, values))


def _lcm(*values: Value) -> int:
    multiple = 1
    for value in values:
        multiple = math.lcm(multiple, _require_whole(value))
        _refuse_too_many_bits(multiple.bit_length())
    return multiple


_ARITHMETIC_FUNCTIONS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Value]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", divide),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}

_COMPARISON_FUNCTIONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

FUNCTIONS: dict[str, _MathFunction] = {
    "abs": _MathFunction(abs),
    "acos": _MathFunction(math.acos),
    "asin": _MathFunction(math.asin),
    "atan": _MathFunction(math.atan),
    "atan2": _MathFunction(math.atan2, 2, 2),
    "ceil": _MathFunction(math.ceil),
    "comb": _MathFunction(_comb, 2, 2),
    "cos": _MathFunction(math.cos),
    "cosh": _MathFunction(math.cosh),
    "degrees": _MathFunction(math.degrees),
    "exp": _MathFunction(math.exp),
    "factorial": _MathFunction(_factorial),
    "floor": _MathFunction(math.floor),
    "gcd": _MathFunction(_gcd, 1, None),
    "hypot": _MathFunction(math.hypot, 1, None),
    "lcm": _MathFunction(_lcm, 1, None),
    "ln": _MathFunction(math.log),
    "log": _MathFunction(math.log, 1, 2),
    "log10": _MathFunction(math.log10),
    "log2": _MathFunction(math.log2),
    "max": _MathFunction(lambda *values: max(values), 1, None),
    "mean": _MathFunction(_mean, 1, None),
    "min": _MathFunction(lambda *values: min(values), 1, None),
    "mod": _MathFunction(operator.mod, 2, 2),
    "perm": _MathFunction(_perm, 2, 2),
    "pow": _MathFunction(power, 2, 2),
    "radians": _MathFunction(math.radians),
    "round": _MathFunction(_round, 1, 2),
    "sin": _MathFunction(math.sin),
    "sinh": _MathFunction(math.sinh),
    "sqrt": _MathFunction(_sqrt),
    "sum": _MathFunction(_sum, 1, None),
    "tan": _MathFunction(math.tan),
    "tanh": _MathFunction(math.tanh),
    "trunc": _MathFunction(math.trunc),
}


_AVAILABLE_NAMES = f"Constants: {', '.join(CONSTANTS)}. Functions: {', '.join(FUNCTIONS)}."
