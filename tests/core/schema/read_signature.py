"""Reading and calling a function as the engine does, with every schema checked on the way."""

from collections.abc import Callable
from typing import Any

import jsonschema_rs

from ferrule.core.call import ToolExecutionContext
from ferrule.core.schema import FunctionSignature, read_function


def read(fn: Callable[..., Any]) -> FunctionSignature:
    signature = read_function(fn)
    jsonschema_rs.meta.validate(signature.parameters)
    if signature.output is not None:
        jsonschema_rs.meta.validate(signature.output)
    return signature


def properties(fn: Callable[..., Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = read(fn).parameters["properties"]
    return schemas


def call(fn: Callable[..., Any], params: dict[str, Any], context: ToolExecutionContext | None = None) -> Any:
    signature = read(fn)
    assert jsonschema_rs.is_valid(signature.parameters, params)
    args, kwargs = signature.bind(params, context or ToolExecutionContext())
    return fn(*args, **kwargs)
