"""Skills that are Python classes: each public class of a file in the skills folder is a tool, its methods the actions.

A file that decorates anything with `@tool` says itself what its tools are: then only that counts.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ferrule.sources.actions import actions_of
from ferrule.sources.loaded import LoadedFile
from ferrule.sources.python_file import decorated_things, read_python_file
from ferrule.sources.skill_file import SOURCE


def read_python_skills(path: Path) -> LoadedFile:
    """The skills of one Python file, or what is wrong with it. The file is run, as an import would."""
    loaded = read_python_file(path, _skills)
    return replace(loaded, tools=tuple(replace(tool, source=SOURCE) for tool in loaded.tools))


def _skills(module: ModuleType) -> list[Any]:
    return list(decorated_things(module)) or _public_classes(module)


def _public_classes(module: ModuleType) -> list[type]:
    own = [
        thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and name == thing.__name__
    ]
    # What another class of the file builds on is its base, not a skill of its own.
    bases = {base for cls in own for base in cls.__mro__[1:]}
    return [cls for cls in own if cls not in bases and not cls.__name__.startswith("_") and _does_something(cls)]


def _does_something(cls: type) -> bool:
    """Not an error, a list of constants or a record: those are what skills work with."""
    is_value = issubclass(cls, (BaseException, enum.Enum, tuple, dict)) or hasattr(cls, "model_fields")
    is_value = is_value or dataclasses.is_dataclass(cls)
    return not is_value and not inspect.isabstract(cls) and bool(actions_of(cls))
