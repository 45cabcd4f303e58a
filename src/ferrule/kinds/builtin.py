"""Executors that need nothing but Python: `echo`, for first steps and tests, and the calculator.

The calculator does exact arithmetic on an expression that a model or a user writes.

An expression is Python's arithmetic, with `^` as a second way to write a power, `x` for times, `%` after a number as
percent, `!` as factorial, and the full-width and typographic signs people paste (`（１２＋３）×４÷５`). It may end with
units: `10 miles to km`. Its signs are translated to Python's, `ast` parses it, and the tree is evaluated here. Nothing
that a caller writes is ever run as code.

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
from fractions import Fraction
from typing import Any, Final, TypeAlias

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


class EchoExecutor:
    """Returns its arguments: `{"message": "hello"}` for `{"message": "hello"}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        return dict(invocation.params)


class CalculatorExecutor:
    """Returns `{"result": 0.3}` for `{"expression": "0.1 + 0.2"}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        return {"result": calculate(str(invocation.params["expression"]))}


def calculate(expression: str) -> int | float | bool:
    """Return the value of an expression, exact where possible. Raises `Retry`, which explains what is wrong."""
    conversion = _CONVERSION.fullmatch(expression) if len(expression) <= MAX_LENGTH else None
    if conversion is None:
        return _to_json_number(_evaluate(expression))
    value, unit, to_unit = Fraction(_evaluate(conversion["value"])), conversion["unit"], conversion["to"]
    try:
        if conversion["more"]:
            value += convert_units(Fraction(conversion["more"]), conversion["small_unit"], unit)
        return _to_json_number(_normalize_number(convert_units(value, unit, to_unit)))
    except ValueError as error:
        raise _Unreadable(f"{unit} cannot be converted to {to_unit}: {error}.") from None


def can_calculate(text: str) -> bool:
    """Return whether `calculate` can read the text. The calculation may still fail, as a division by zero does."""
    try:
        calculate(text)
    except _Unreadable:
        return False
    except Retry:
        return True
    return True


class _Unreadable(Retry):
    """The error of a text that is not an expression."""


_CONVERSION = lazy_pattern(
    rf"\s*(?P<value>.*?[\d)])\s*(?P<unit>{UNIT})(?:\s+(?P<more>\d+(?:\.\d+)?)\s*(?P<small_unit>{UNIT}))?"
    rf"\s+(?:to|in|into|as)\s+(?P<to>{UNIT})\s*",
    re.IGNORECASE,
)
"""`10 miles to km`, `5 feet 10 inches to cm`."""


# From text to Python

_SIGNS: Final = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | str.maketrans(  # full-width forms
    {"×": "*", "⋅": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "≤": "<=", "≥": ">=", "≠": "!="}
    | {"\u3000": " ", "、": ",", "π": " pi ", "【": "[", "】": "]"}
)
_TIMES = lazy_pattern(r"(?<=[\d)%!])(?<!\b0)\s*[xX]\s*(?=[\d.(])|(?<=[\d)%!]) [xX] (?=[A-Za-z])")
"""`3 x 4`, but not the hexadecimal `0x4`."""
_TOKEN = lazy_pattern(
    r"""\s*(?:
        (?P<number>0[xX][0-9a-fA-F]+ | 0[oO][0-7]+ | 0[bB][01]+ | (?:\d[\d_]*\.?\d* | \.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<unclear>%(?=\s*[-+]))
      | (?P<percent>%(?=\s*(?:\Z|[])*/%^,!<>=])))
      | (?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%()\[\],<>])
      | (?P<power>\^) | (?P<factorial>!)
      | (?P<other>\S)
    )""",
    re.VERBOSE | re.ASCII,
)


def _translate_to_python(expression: str) -> tuple[str, list[Value]]:
    """Return the expression as Python, and its numbers. In the text every number is its position in that list, because
    `ast` would read 0.1 as floating point; names end with `_`, so that none is a keyword; `x%` is `x .percent`
    and `x!` is `x .factorial`.
    """
    if len(expression) > MAX_LENGTH:
        limits = f"{len(expression):,} characters, at most {MAX_LENGTH:,} are allowed"
        raise _Unreadable(f"the expression has {limits}. Split it into several calls.")
    numbers: list[Value] = []
    words: list[str] = []
    for match in _TOKEN.finditer(_TIMES.sub("*", expression.translate(_SIGNS))):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "number":
            words.append(str(len(numbers)))
            numbers.append(_parse_number(text))
        elif kind == "unclear":
            advice = "Write (10%)-5 for percent, or mod(10, -5) for the remainder."
            raise _Unreadable(f"'%' before a sign can be read in two ways. {advice}")
        elif kind == "other":
            raise _Unreadable(
                f"{text!r} is not allowed in an expression. It is made of numbers, + - * / // % ** ( ), "
                "comparisons and functions such as sqrt(2)."
            )
        else:
            python = {"name": f"{text}_", "percent": ".percent", "factorial": ".factorial", "power": "**"}
            words.append(python.get(kind, text))
        if words.count("(") - words.count(")") > MAX_DEPTH:
            raise _Unreadable(_TOO_DEEP)
    if not words:
        raise _Unreadable("the expression is empty. Write something like 2 * (3 + 4).")
    return " ".join(words), numbers


def _parse_number(text: str) -> int | Fraction:
    digits = text.replace("_", "")
    if digits[:2].lower() in ("0x", "0o", "0b"):
        return int(digits, 0)
    mantissa, _, exponent = digits.lower().partition("e")
    # 1e999999 must be refused before its digits are computed.
    if exponent and len(mantissa) + abs(int(exponent)) > MAX_DIGITS:
        raise _Unreadable(f"{text} has more than {MAX_DIGITS:,} digits, which is more than the calculator computes.")
    value = Fraction(digits)
    return value.numerator if value.denominator == 1 else value


# Evaluation

_TOO_DEEP: Final = f"the expression is nested more than {MAX_DEPTH} levels deep. Split it into several calls."
_ADVICE: Final = (
    "the expression cannot be read: an operator, a number or a bracket is missing, or there is one too many. Write "
    "2*(3+4) instead of 2(3+4); words are not understood."
)


def _evaluate(expression: str) -> Value:
    text, numbers = _translate_to_python(expression)
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise _Unreadable(_ADVICE) from None
    except (RecursionError, MemoryError):
        raise _Unreadable(_TOO_DEEP) from None
    match tree:
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _COMPARISONS[type(sign)](_value(left, numbers), _value(right, numbers))
        case ast.Compare():
            raise _Unreadable("only two values can be compared in one expression, such as 1/3 < 0.34.")
        case ast.Tuple():
            advice = "Write 1234 or 1_234 instead of 1,234."
            raise _Unreadable(f"a comma only separates the arguments of a function. {advice}")
    return _value(tree, numbers)


def _value(node: ast.expr, numbers: list[Value], depth: int = 0) -> Value:
    """Evaluate a part of the expression. Sums and products may be long, everything else is limited in depth."""
    if depth >= MAX_DEPTH:
        raise _Unreadable(_TOO_DEEP)

    def value(inner: ast.expr) -> Value:
        return _value(inner, numbers, depth + 1)

    match node:
        case ast.Constant(value=int(index)):
            return numbers[index]
        case ast.Name(id=name) if name[:-1] in CONSTANTS:
            return CONSTANTS[name[:-1]]
        case ast.Name(id=name) if name[:-1] in FUNCTIONS:
            raise Retry(f"{name[:-1]!r} is a function: write {name[:-1]}(…) with its arguments in brackets.")
        case ast.Name(id=name):
            near = did_you_mean(name[:-1], [*CONSTANTS, *FUNCTIONS])
            raise Retry(f"{name[:-1]!r} is not known.{near} {_AVAILABLE_NAMES}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.UnaryOp(operand=operand):
            return value(operand)
        case ast.Attribute(value=operand, attr="factorial"):
            return _compute("!", _factorial, value(operand))
        case ast.Attribute(value=operand):
            return _compute("%", _divide, value(operand), 100)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _compute("the power", _power, value(base), value(exponent))
        case ast.BinOp():
            # `1 + 2 + 3 + …` is a tree as deep as it is long: a loop instead of recursion.
            steps: list[tuple[ast.operator, ast.expr]] = []
            while isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
                steps.append((node.op, node.right))
                node = node.left
            total = value(node)
            for op, operand in reversed(steps):
                sign, function = _OPERATORS[type(op)]
                total = _compute(sign, function, total, value(operand))
            return total
        case ast.Call(func=ast.Name(id=name), args=[ast.List(elts=arguments)] | arguments, keywords=[]):
            return _call_function(name[:-1], [value(argument) for argument in arguments])
    raise _Unreadable(_ADVICE)


def _call_function(name: str, arguments: list[Value]) -> Value:
    if name not in FUNCTIONS:
        raise Retry(f"there is no function {name!r}.{did_you_mean(name, FUNCTIONS)} {_AVAILABLE_NAMES}")
    try:
        return _compute(name, FUNCTIONS[name], *arguments)
    except TypeError:
        message = f"{name} does not take {len(arguments)} argument(s). Thousands are written 1234, not 1,234."
        raise Retry(message) from None


# Arithmetic


def _compute(what: str, function: Callable[..., Any], *operands: Value) -> Value:
    """Return the result of an operation. Raises `Retry`, which says why it has failed."""
    try:
        return _normalize_number(function(*operands))
    except ZeroDivisionError:
        raise Retry("this divides by zero.") from None
    except OverflowError:
        raise Retry(f"{what} is too large for a floating point number.") from None
    except ValueError:
        values = ", ".join(_shorten_number(operand) for operand in operands)
        raise Retry(f"{what} is not defined for {values}.") from None


def _divide(a: Value, b: Value) -> Value:
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, float) or not isinstance(exponent, int):
        # A negative base gives a complex number, which the calculator does not support.
        result: Any = float(base) ** float(exponent)
        if isinstance(result, complex):
            raise ValueError
        if isinstance(exponent, Fraction) and exponent.numerator == 1 and exponent.denominator <= MAX_DEPTH:
            root = round(float(result))
            if root**exponent.denominator == base:
                return root
        return float(result)
    fraction = Fraction(base)
    bits = max(fraction.numerator.bit_length(), fraction.denominator.bit_length())
    if isinstance(base, int) or (bits - 1) * abs(exponent) <= MAX_BITS:
        _refuse_too_many_bits((bits - 1) * abs(exponent))
        return fraction**exponent
    # It has too many digits to be exact, such as 1.01**10000: the nearest floating point number.
    with decimal.localcontext(_PRECISE) as context:
        try:
            nearest = float(context.power(context.divide(base.numerator, base.denominator), exponent))
        except (decimal.Overflow, decimal.InvalidOperation):
            raise OverflowError from None
    if nearest == 0.0:
        raise Retry(f"{_shorten_number(base)} to the power of {_shorten_number(exponent)} is too small for a number.")
    return nearest


def _to_json_number(value: Value) -> int | float:
    """Return the value as JSON has it: whole numbers with all digits, others as the nearest floating point number."""
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
    """Make whole fractions integers and minus zero zero. Raises an error for values that are too large or NaN."""
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
        reason = "is not a whole number, which is needed here. Use round(…) or floor(…) first."
        raise Retry(f"{_shorten_number(value)} {reason}")
    return int(value)


def _sum(first: Value, *others: Value) -> Value:
    total = first
    for value in others:
        total = _normalize_number(total + value)  # a fraction that becomes too long ends here
    return total


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


# Simple bounds: n! has n factors up to n, perm(n, k) and comb(n, k) have k, and comb(n, k) is less than 2**n.


def _limit_bits(function: Callable[..., int], bits: Callable[..., float]) -> Callable[..., int]:
    """Return a function of whole numbers that computes nothing if the result could have too many `bits`."""

    def compute(*values: Value) -> int:
        numbers = list(map(_require_whole, values))
        _refuse_too_many_bits(bits(*numbers))
        return function(*numbers)

    return compute


def _lcm(first: Value, *others: Value) -> int:
    multiple = 1
    for value in (first, *others):
        multiple = math.lcm(multiple, _require_whole(value))
        _refuse_too_many_bits(multiple.bit_length())
    return multiple


_factorial = _limit_bits(math.factorial, lambda n: n * n.bit_length())

_OPERATORS: Final[dict[type[ast.operator], tuple[str, Callable[[Any, Any], Value]]]] = {
    ast.Add: ("'+'", operator.add),
    ast.Sub: ("'-'", operator.sub),
    ast.Mult: ("'*'", operator.mul),
    ast.Div: ("'/'", _divide),
    ast.FloorDiv: ("'//'", operator.floordiv),
    ast.Mod: ("'%'", operator.mod),
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CONSTANTS: Final = {"pi": math.pi, "e": math.e, "tau": math.tau}
FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "abs": abs,
    **{name: getattr(math, name) for name in ("acos", "asin", "atan", "atan2", "ceil")},
    "comb": _limit_bits(math.comb, lambda n, k: min(n, min(k, n - k) * n.bit_length())),
    **{name: getattr(math, name) for name in ("cos", "cosh", "degrees", "exp")},
    "factorial": _factorial,
    "floor": math.floor,
    "gcd": _limit_bits(math.gcd, lambda first, *others: 0),
    "hypot": lambda first, *others: math.hypot(first, *others),
    "lcm": _lcm,
    "ln": lambda value: math.log(value),
    **{name: getattr(math, name) for name in ("log", "log10", "log2")},
    "max": lambda first, *others: max((first, *others)),
    "mean": lambda first, *others: _divide(_sum(first, *others), 1 + len(others)),
    "min": lambda first, *others: min((first, *others)),
    "mod": operator.mod,
    "perm": _limit_bits(math.perm, lambda n, k: min(n, k) * n.bit_length()),
    "pow": _power,
    "radians": math.radians,
    "round": _round,
    **{name: getattr(math, name) for name in ("sin", "sinh")},
    "sqrt": _sqrt,
    "sum": _sum,
    **{name: getattr(math, name) for name in ("tan", "tanh", "trunc")},
}
_AVAILABLE_NAMES: Final = f"Constants: {', '.join(CONSTANTS)}. Functions: {', '.join(FUNCTIONS)}."
