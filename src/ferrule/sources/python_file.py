"""Tools in Python files: every function and class of a file that `@tool` was put on.

What a file imports from elsewhere is not its tool, decorated or not. How a file becomes a module is told in
`ferrule.executors.python_module`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ferrule.errors import LoadError, SpecError
from ferrule.executors.python_module import ModuleVersion, load_or_explain, read_version
from ferrule.sources.function import tool_of
from ferrule.sources.loaded import LoadedFile, digest
from ferrule.sources.tool_options import NOTE
from ferrule.spec import Tool


def decorated_things(module: ModuleType) -> Iterator[Any]:
    """What `@tool` was put on, in order of definition; a second name for the same thing does not count."""
    seen: set[int] = set()
    for thing in list(vars(module).values()):
        # Its own note, not one it has from its class: an object of a decorated class is not another tool.
        is_ours = NOTE in getattr(thing, "__dict__", ()) and getattr(thing, "__module__", None) == module.__name__
        if is_ours and id(thing) not in seen:
            seen.add(id(thing))
            yield thing


def read_python_file(path: Path, things: Callable[[ModuleType], Iterable[Any]] = decorated_things) -> LoadedFile:
    """The tools of one Python file, or what is wrong with it. The file is run, as an import would.

    `things` says what of the module becomes a tool.
    """
    try:
        version = _read_filled(path)
        module = load_or_explain(version, shown=path)
    except LoadError as error:
        return LoadedFile(errors=(error,))
    tools: list[Tool] = []
    errors: list[LoadError] = []
    for thing in things(module):
        line = _line_of(thing, version)
        try:
            tools.append(_tool(thing, f"{path}:{line}", version))
        except SpecError as error:
            errors.append(LoadError(str(error), path=path, line=line))
    if errors:
        return LoadedFile(errors=tuple(errors))
    made_from = {each: digest(source) for each, source in version.sources.items()}
    return LoadedFile(tools=tuple(tools), made_from=made_from)


def _read_filled(path: Path) -> ModuleVersion:
    version = read_version(path)
    if not version.sources[version.path].strip():
        # Often a file that is just being saved: to lose its tools would be worse than to keep the old ones.
        raise LoadError("the file is empty", path=path, hint="define a tool in it, or delete it")
    return version


def _tool(thing: Any, origin: str, version: ModuleVersion) -> Tool:
    tool = tool_of(thing)
    # The signature alone would not tell that the body has changed.
    metadata = {**tool.spec.metadata, "source_hash": version.digest}
    return replace(tool, spec=replace(tool.spec, metadata=metadata), origin=origin)


def _line_of(thing: Any, version: ModuleVersion) -> int:
    if inspect.isclass(thing):
        classes = (n for n in ast.walk(ast.parse(version.sources[version.path])) if isinstance(n, ast.ClassDef))
        return next((node.lineno for node in classes if node.name == thing.__name__), 1)
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return code.co_firstlineno if code is not None else 1
