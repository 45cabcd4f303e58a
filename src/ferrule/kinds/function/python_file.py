"""Tools in Python files: every function and class of a file that is decorated with `@tool`, or, in a file without any,
every class with a `name`, a `description` and a method `execute`.

What a file imports from elsewhere is not its tool, decorated or not. How a file becomes a module: see
`ferrule.process.python_module`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ferrule.core.spec import Tool
from ferrule.errors import LoadError, SpecError
from ferrule.kinds.function.decorator import OPTIONS_ATTRIBUTE
from ferrule.kinds.function.tools import find_actions, is_tool_object, tool_of
from ferrule.kinds.source import LoadedFile, digest
from ferrule.process.python_module import ModuleVersion, load_or_explain, read_version


def find_decorated(module: ModuleType) -> Iterator[Any]:
    """Yield what is decorated with `@tool`, in order of definition. A second name for an object does not count."""
    ids: set[int] = set()
    for thing in list(vars(module).values()):
        # Its own attribute, not an attribute of its class: an object of a decorated class is not another tool.
        is_ours = (
            OPTIONS_ATTRIBUTE in getattr(thing, "__dict__", ())
            and getattr(thing, "__module__", None) == module.__name__
        )
        if is_ours and id(thing) not in ids:
            ids.add(id(thing))
            yield thing


def public_classes(module: ModuleType) -> list[type]:
    """Return the classes of a file that have methods to call: no exceptions, enums or records."""
    own = [
        thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and name == thing.__name__
    ]
    # The base class of another class of the file is not a separate tool.
    bases = {base for cls in own for base in cls.__mro__[1:]}
    return [cls for cls in own if cls not in bases and not cls.__name__.startswith("_") and _has_actions(cls)]


def _has_actions(cls: type) -> bool:
    is_value = issubclass(cls, (BaseException, enum.Enum, tuple, dict)) or hasattr(cls, "model_fields")
    is_value = is_value or dataclasses.is_dataclass(cls)
    return not is_value and not inspect.isabstract(cls) and bool(find_actions(cls))


def find_tools(module: ModuleType) -> list[Any]:
    """Return what is decorated or, if nothing is, the classes that say themselves which tools they are."""
    return list(find_decorated(module)) or list(filter(is_tool_object, public_classes(module)))


def read_python_file(path: Path, select_tools: Callable[[ModuleType], Iterable[Any]] = find_tools) -> LoadedFile:
    """Read the tools of one Python file, or what is wrong with it. The file is executed, as by an import.

    `select_tools` selects what of the module becomes a tool.
    """
    try:
        version = read_version(path)
        if not version.sources[version.path].strip():
            # Often a file that is just being saved: better to keep the old tools than to lose them.
            raise LoadError("the file is empty", path=path, hint="define a tool in it, or delete it")
        module = load_or_explain(version, display_path=path)
    except LoadError as error:
        return LoadedFile(errors=(error,))
    tools: list[Tool] = []
    errors: list[LoadError] = []
    for thing in select_tools(module):
        line = _find_line(thing, version)
        try:
            tool = tool_of(thing)
            # The signature alone would not show that the body has changed.
            metadata = {**tool.spec.metadata, "source_hash": version.digest}
            tools.append(replace(tool, spec=replace(tool.spec, metadata=metadata), origin=f"{path}:{line}"))
        except SpecError as error:
            errors.append(LoadError(str(error), path=path, line=line))
    if errors:
        return LoadedFile(errors=tuple(errors))
    digests = {each: digest(source) for each, source in version.sources.items()}
    hint = (
        "decorate it with @tool, or give it a name, a description and a method execute; "
        "if the file has no tools, let its name begin with an underscore"
    )
    unused = [
        LoadError(f"the class {cls.__name__!r} is not a tool", path=path, line=_find_line(cls, version), hint=hint)
        for cls in ([] if tools else public_classes(module))
    ]
    return LoadedFile(tools=tuple(tools), digests=digests, unused=tuple(unused))


def _find_line(thing: Any, version: ModuleVersion) -> int:
    if inspect.isclass(thing):
        classes = (n for n in ast.walk(ast.parse(version.sources[version.path])) if isinstance(n, ast.ClassDef))
        return next((node.lineno for node in classes if node.name == thing.__name__), 1)
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return code.co_firstlineno if code is not None else 1
