"""Classes that a spec only names: imported and made when they are first needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from typing import Any

from ferrule.errors import ExecutionFailed, ExecutorNotFound, FerruleError
from ferrule.names import did_you_mean
from ferrule.spec import FunctionToolSpec


def import_named(spec: FunctionToolSpec) -> Any:
    """The class the spec names, or the module when it names none."""
    try:
        module = importlib.import_module(spec.module_path)
    except ModuleNotFoundError as error:
        raise ExecutorNotFound(
            f"tool {spec.tool_id!r}: module {spec.module_path!r} cannot be imported, because there is no module "
            f"{error.name!r}. Install it, or mend the tool's module_path."
        ) from error
    except Exception as error:  # what a user's module raises while it is imported may be anything
        raise ExecutionFailed(
            f"tool {spec.tool_id!r}: importing module {spec.module_path!r} failed with {_said(error)}."
        ) from error
    if not spec.class_name:
        return module
    try:
        return reduce(getattr, spec.class_name.split("."), module)
    except AttributeError as error:
        raise ExecutorNotFound(
            f"tool {spec.tool_id!r}: module {spec.module_path!r} has no class {spec.class_name!r}."
            f"{did_you_mean(spec.class_name, vars(module))}"
        ) from error


def make_named(spec: FunctionToolSpec) -> Any:
    """The object the spec's functions are methods of, or the module they stand in."""
    found = import_named(spec)
    return make(spec.tool_id, found, spec.init_params) if spec.class_name else found


def make(tool_id: str, cls: type, init_params: Mapping[str, Any]) -> Any:
    try:
        return cls(**init_params)
    except FerruleError:
        raise
    except Exception as error:  # the class is the user's code
        raise ExecutionFailed(f"tool {tool_id!r}: making a {cls.__name__} failed with {_said(error)}.") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
