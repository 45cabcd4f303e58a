"""The calculator: walks an expression's syntax tree. Nothing a caller writes is ever run as code."""

from __future__ import annotations

from typing import Any

from ferrule.call import Invocation
from ferrule.errors import Retry
from ferrule.executors.calculator.arithmetic import (
    COMPARISONS,
    CONSTANTS,
    FUNCTIONS,
    OPERATORS,
    Value,
    as_json_number,
    compute,
    divide,
    power,
)
from ferrule.executors.calculator.expression import (
    Call,
    Chain,
    Comparison,
    Name,
    Negative,
    Node,
    Number,
    Percent,
    Power,
    parse,
)
from ferrule.names import did_you_mean


class CalculatorExecutor:
    """Answers `{"expression": "0.1 + 0.2"}` with `{"result": 0.3}`."""

    async def execute(self, invocation: Invocation, /) -> dict[str, Any]:
        expression = str(invocation.params["expression"])
        return {"result": calculate(expression)}


def calculate(expression: str) -> int | float | bool:
    """The value of an expression, exact where it can be; `Retry` says what is wrong with one that has none."""
    tree = parse(expression)
    if isinstance(tree, Comparison):
        return COMPARISONS[tree.operator](_value(tree.left), _value(tree.right))
    return as_json_number(_value(tree))


def _value(node: Node) -> Value:
    match node:
        case Number(value):
            return value
        case Name(name):
            return _constant(name)
        case Negative(operand):
            return -_value(operand)
        case Percent(operand, times):
            total = _value(operand)
            for _ in range(times):
                total = compute("%", divide, total, 100)
            return total
        case Power(base, exponent):
            return compute("the power", power, _value(base), _value(exponent))
        case Chain(first, rest):
            total = _value(first)
            for sign, operand in rest:
                total = compute(repr(sign), OPERATORS[sign], total, _value(operand))
            return total
        case Call(name, arguments):
            return _call(name, [_value(argument) for argument in arguments])


def _constant(name: str) -> float:
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in FUNCTIONS:
        raise Retry(f"{name!r} is a function: write {name}(…) with its arguments in brackets.")
    raise Retry(f"{name!r} is not known.{did_you_mean(name, [*CONSTANTS, *FUNCTIONS])} {_KNOWN}")


def _call(name: str, arguments: list[Value]) -> Value:
    function = FUNCTIONS.get(name)
    if function is None:
        raise Retry(f"there is no function {name!r}.{did_you_mean(name, FUNCTIONS)} {_KNOWN}")
    given = len(arguments)
    if given < function.least or (function.most is not None and given > function.most):
        span = f"{function.least}" if function.most == function.least else f"{function.least} to {function.most}"
        needed = f"at least {function.least}" if function.most is None else span
        raise Retry(f"{name} takes {needed} argument(s), not {given}. Thousands are written 1234, not 1,234.")
    return compute(name, function.compute, *arguments)


_KNOWN = f"Constants: {', '.join(CONSTANTS)}. Functions: {', '.join(FUNCTIONS)}."
