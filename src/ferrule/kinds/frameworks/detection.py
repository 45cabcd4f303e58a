"""Recognizes tools and toolkits of other frameworks by the names of their classes.

No framework is imported to find out whether an object is one of its tools. The nearest class in the object's method
resolution order decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ferrule.errors import SpecError
from ferrule.kinds.frameworks.foreign_tool import ForeignTool
from ferrule.kinds.frameworks.langchain import read_langchain_tool
from ferrule.kinds.frameworks.openai_agents import read_function_tool
from ferrule.kinds.frameworks.pydantic_ai import list_function_toolset, read_pydantic_ai_tool


def _refuse_async_toolset(toolset: Any) -> NoReturn:
    raise SpecError(
        f"The tools of a {type(toolset).__name__} can be listed only with await: use "
        "library.register(*await tools_of_toolset(toolset)), from ferrule.adapters.pydantic_ai"
    )


_TOOL_READERS: dict[str, Callable[[Any], ForeignTool]] = {
    "langchain_core.tools.base.BaseTool": read_langchain_tool,
    "pydantic_ai.tools.Tool": read_pydantic_ai_tool,
    "agents.tool.FunctionTool": read_function_tool,
}
_TOOLKIT_READERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "builtins.list": iter,
    "builtins.tuple": iter,
    "langchain_core.tools.base.BaseToolkit": lambda toolkit: toolkit.get_tools(),
    "pydantic_ai.toolsets.function.FunctionToolset": list_function_toolset,
    "pydantic_ai.toolsets.abstract.AbstractToolset": _refuse_async_toolset,
}


def is_foreign_tool(thing: Any) -> bool:
    """Whether an object is a tool of another framework."""
    return _find_for_class(_TOOL_READERS, thing) is not None


def read_foreign_tool(thing: Any) -> ForeignTool | None:
    """Another framework's tool; None for anything else."""
    read = _find_for_class(_TOOL_READERS, thing)
    return None if read is None else read(thing)


def list_toolkit_items(thing: Any) -> Iterable[Any] | None:
    """The items of a list or of another framework's toolkit; None for anything else."""
    list_items = _find_for_class(_TOOLKIT_READERS, thing)
    return None if list_items is None else list_items(thing)


def _find_for_class(table: dict[str, Callable[[Any], Any]], thing: Any) -> Callable[[Any], Any] | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(thing).__mro__)
    return next((table[name] for name in names if name in table), None)
