"""The calculator's numbers: exact where that is possible, and never too large to be computed at once.

Whole numbers and decimals are exact, and so is everything made of them by + - * / // % and whole powers: 0.1 + 0.2
is 0.3. Roots that do not come out even, logarithms, trigonometry and broken powers are floating point, and so is
everything made of those. No number gets more than 4,000 digits: what could become larger is estimated first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from ferrule.errors import Retry
from ferrule.executors.calculator.expression import MAX_DIGITS

Value: TypeAlias = int | Fraction | float

MAX_BITS = int(MAX_DIGITS * math.log2(10))


@dataclass(frozen=True, slots=True)
class Function:
    compute: Callable[..., Value]
    least: int = 1
    most: int | None = 1
    """None = any number of arguments."""


def compute(what: str, function: Callable[..., Any], *operands: Value) -> Value:
    """The result of an operation, or a `Retry` that says why there is none."""
    try:
        return _settled(function(*operands))
    except ZeroDivisionError:
        raise Retry(f"{what} divides by zero.") from None
    except OverflowError:
        raise Retry(f"{what} is too large for a floating point number.") from None
    except ValueError:
        shown = ", ".join(_shown(o) for o in operands)
        raise Retry(f"{what} is not defined for {shown}.") from None


def divide(a: Value, b: Value) -> Value:
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def power(base: Value, exponent: Value) -> Value:
    if isinstance(base, float) or not isinstance(exponent, int):
        # Of a negative base this is a complex number, which has no place here.
        result: Any = float(base) ** float(exponent)
        if isinstance(result, complex):
            raise ValueError
        return float(result)
    fraction = Fraction(base)
    bits = max(fraction.numerator.bit_length(), fraction.denominator.bit_length())
    _refuse_more_bits((bits - 1) * abs(exponent))
    return fraction**exponent


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


def _settled(value: Value) -> Value:
    """Whole fractions become integers, minus zero becomes zero; what is too large or no number is refused."""
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError
        if math.isinf(value):
            raise OverflowError
        return value or 0.0
    _refuse_more_bits(max(value.numerator.bit_length(), value.denominator.bit_length()))
    return value.numerator if value.denominator == 1 else value


def _refuse_more_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise Retry(
            f"a number would get more than {MAX_DIGITS:,} digits, which is more than the calculator computes. "
            "Use smaller numbers, or logarithms: 1000*log10(9) instead of log10(9**1000)."
        )


def _shown(value: Value) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}…"


def _whole(value: Value) -> int:
    if isinstance(value, Fraction) or (isinstance(value, float) and not value.is_integer()):
        raise Retry(f"{_shown(value)} is not a whole number, which is needed here. Use round(…) or floor(…) first.")
    return int(value)


def _sum(*values: Value) -> Value:
    total: Value = 0
    for value in values:
        total = _settled(total + value)
    return total


def _mean(*values: Value) -> Value:
    return divide(_sum(*values), len(values))


def _round(value: Value, digits: Value = 0) -> Value:
    places = _whole(digits)
    if abs(places) > MAX_DIGITS:
        raise Retry(f"round can keep at most {MAX_DIGITS:,} digits, not {_shown(places)}.")
    if isinstance(value, float) and places:
        return round(value, places)
    return round(Fraction(value), places)


def _sqrt(value: Value) -> Value:
    if isinstance(value, float) or value < 0:
        return math.sqrt(value)
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else math.sqrt(value)


def _factorial(value: Value) -> int:
    n = _whole(value)
    _refuse_more_bits(_log2_factorial(n))
    return math.factorial(n)


def _comb(total: Value, chosen: Value) -> int:
    n, k = _whole(total), _whole(chosen)
    if 0 <= k <= n:
        k = min(k, n - k)
        _refuse_more_bits(_log2_perm(n, k) - _log2_factorial(k))
    return math.comb(n, k)


def _perm(total: Value, chosen: Value) -> int:
    n, k = _whole(total), _whole(chosen)
    if 0 <= k <= n:
        _refuse_more_bits(_log2_perm(n, k))
    return math.perm(n, k)


def _log2_factorial(n: int) -> float:
    """Good enough to tell how many bits there will be, also for numbers that lgamma does not take."""
    return 0.0 if n < 2 else math.lgamma(min(n, 10**12) + 1) / math.log(2)


def _log2_perm(n: int, k: int) -> float:
    if n < 10**12:
        return _log2_factorial(n) - _log2_factorial(n - k)
    return k * math.log2(n)


def _gcd(*values: Value) -> int:
    return math.gcd(*map(_whole, values))


def _lcm(*values: Value) -> int:
    multiple = 1
    for value in values:
        multiple = math.lcm(multiple, _whole(value))
        _refuse_more_bits(multiple.bit_length())
    return multiple


OPERATORS: dict[str, Callable[[Any, Any], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide,
    "//": operator.floordiv,
    "%": operator.mod,
}

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

FUNCTIONS: dict[str, Function] = {
    "abs": Function(abs),
    "acos": Function(math.acos),
    "asin": Function(math.asin),
    "atan": Function(math.atan),
    "atan2": Function(math.atan2, 2, 2),
    "ceil": Function(math.ceil),
    "comb": Function(_comb, 2, 2),
    "cos": Function(math.cos),
    "cosh": Function(math.cosh),
    "degrees": Function(math.degrees),
    "exp": Function(math.exp),
    "factorial": Function(_factorial),
    "floor": Function(math.floor),
    "gcd": Function(_gcd, 1, None),
    "hypot": Function(math.hypot, 1, None),
    "lcm": Function(_lcm, 1, None),
    "ln": Function(math.log),
    "log": Function(math.log, 1, 2),
    "log10": Function(math.log10),
    "log2": Function(math.log2),
    "max": Function(lambda *values: max(values), 1, None),
    "mean": Function(_mean, 1, None),
    "min": Function(lambda *values: min(values), 1, None),
    "mod": Function(operator.mod, 2, 2),
    "perm": Function(_perm, 2, 2),
    "pow": Function(power, 2, 2),
    "radians": Function(math.radians),
    "round": Function(_round, 1, 2),
    "sin": Function(math.sin),
    "sinh": Function(math.sinh),
    "sqrt": Function(_sqrt),
    "sum": Function(_sum, 1, None),
    "tan": Function(math.tan),
    "tanh": Function(math.tanh),
    "trunc": Function(math.trunc),
}
