"""Tools of other frameworks, and boxes of them, known by the names of their classes.

No framework is imported to find out whether a thing is one of its own: an object's class says where it comes from.
The nearest class of its family decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ferrule.errors import SpecError
from ferrule.sources.foreign_tool import ForeignTool
from ferrule.sources.langchain_tool import read_langchain_tool
from ferrule.sources.openai_agents_tool import read_function_tool
from ferrule.sources.pydantic_ai_tool import read_pydantic_ai_tool, tools_without_asking


def _cannot_wait(toolset: Any) -> NoReturn:
    raise SpecError(
        f"A {type(toolset).__name__} must be asked for its tools, which takes an await: use "
        "library.register(*await tools_of_toolset(toolset)), from ferrule.adapters.pydantic_ai"
    )


TOOLS: dict[str, Callable[[Any], ForeignTool]] = {
    "langchain_core.tools.base.BaseTool": read_langchain_tool,
    "pydantic_ai.tools.Tool": read_pydantic_ai_tool,
    "agents.tool.FunctionTool": read_function_tool,
}
BOXES: dict[str, Callable[[Any], Iterable[Any]]] = {
    "builtins.list": iter,
    "builtins.tuple": iter,
    "langchain_core.tools.base.BaseToolkit": lambda toolkit: toolkit.get_tools(),
    "pydantic_ai.toolsets.function.FunctionToolset": tools_without_asking,
    "pydantic_ai.toolsets.abstract.AbstractToolset": _cannot_wait,
}


def is_foreign(thing: Any) -> bool:
    """Whether it is a tool of another framework."""
    return _nearest(TOOLS, thing) is not None


def read_foreign(thing: Any) -> ForeignTool | None:
    """What another framework's tool is; None for what is no such tool."""
    read = _nearest(TOOLS, thing)
    return None if read is None else read(thing)


def contents_of(thing: Any) -> Iterable[Any] | None:
    """What is in a list or another framework's box of tools; None for what is no box."""
    open_box = _nearest(BOXES, thing)
    return None if open_box is None else open_box(thing)


def _nearest(table: dict[str, Callable[[Any], Any]], thing: Any) -> Callable[[Any], Any] | None:
    for cls in type(thing).__mro__:
        found = table.get(f"{cls.__module__}.{cls.__qualname__}")
        if found is not None:
            return found
    return None
