"""Python code as tools: functions, classes, objects, and classes that are only named.

A function is a tool with one action of its own name. A class or an object is a tool whose actions are its methods;
`tools_of` makes a tool of each method instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from ferrule.errors import CallError, SpecError
from ferrule.schema import FunctionSignature, read_function
from ferrule.schema.callables import is_callable_object, underlying
from ferrule.schema.docstrings import read_docstring
from ferrule.sources.actions import Action, actions_of, capability_of
from ferrule.sources.foreign import is_foreign, read_foreign
from ferrule.sources.foreign_tool import ForeignTool
from ferrule.sources.mcp_tool import tool_of_server_spec
from ferrule.sources.named_class import import_named, make, make_named
from ferrule.sources.object_target import ObjectTarget, SharedObject
from ferrule.sources.tool_options import NO_OPTIONS, ToolKeywords, ToolOptions, label_of, options_of, read_options, tool
from ferrule.spec import FunctionToolSpec, MCPServerSpec, Tool, ToolCapability, ToolCategory, ToolSpec

__all__ = ["ToolKeywords", "ToolOptions", "tool", "tool_of", "tools_of"]

HANDLER = "function"


def tool_of(thing: Any, **options: Unpack[ToolKeywords]) -> Tool:
    """The tool that a function, a class, an object, a spec or another framework's tool is.

    Options win over those of `@tool`.
    """
    if isinstance(thing, ToolSpec):
        if options:
            raise SpecError(f"tool {thing.tool_id!r} has a spec: say {', '.join(options)} there")
        return _tool_of_spec(thing)
    given = read_options(label_of(thing), options)
    foreign = read_foreign(thing)
    if foreign is not None:
        return tool_of_foreign(foreign, given)
    if isinstance(thing, type) or not _is_function(thing):
        return _tool_of_methods(thing, given)
    function = thing.__func__ if isinstance(thing, staticmethod) else thing
    said = given.over(_noted(function))
    spec = _spec_of_one(said.name or _name_of(function), _read(function), said)
    return Tool(spec=spec, handler=HANDLER, target=_TheFunction(function), origin=origin_of(function))


def tools_of(thing: Any) -> list[Tool]:
    """A tool for each action of a class or an object, instead of one for all; what has no actions is one tool."""
    if isinstance(thing, ToolSpec) or is_foreign(thing) or (not isinstance(thing, type) and _is_function(thing)):
        return [tool_of(thing)]
    actions = _actions(thing)
    whole = replace(options_of(_class_of(thing)) or NO_OPTIONS, name=None, description=None, examples=None)
    shared = _shared(thing, users=len(actions))
    tools = []
    for action in actions:
        spec = _spec_of_one(action.name, read_function(action.method), action.options.over(whole))
        target = ObjectTarget(shared, {action.name: action.attribute})
        tools.append(Tool(spec=spec, handler=HANDLER, target=target, origin=origin_of(action.method)))
    return tools


def tool_of_foreign(foreign: ForeignTool, given: ToolOptions, *, holds: Any = None) -> Tool:
    """The tool that another framework's is. What it `holds` is closed with it."""
    said = given.over(foreign.options)
    spec = _spec_of_one(said.name or foreign.name, foreign, said)
    target = _TheFunction(foreign.call) if holds is None else _HeldFunction(foreign.call, holds)
    return Tool(spec=spec, handler=HANDLER, target=target, origin=origin_of(foreign.made_from))


def origin_of(thing: Any) -> str:
    """The very place of a piece of code: `shop.orders:cancel (orders.py:12)`."""
    below = underlying(thing)
    code = getattr(below, "__code__", None)
    named = f"{getattr(below, '__module__', None) or '?'}:{label_of(below)}"
    return named if code is None else f"{named} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


class _TheFunction:
    """The target of a function that is there."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function


class _HeldFunction(_TheFunction):
    """The target of a function that needs something to be open, and closes it in the end."""

    __slots__ = ("_holds",)

    def __init__(self, function: Callable[..., Any], holds: Any) -> None:
        super().__init__(function)
        self._holds = holds

    async def aclose(self) -> None:
        await self._holds.aclose()


def _tool_of_methods(thing: Any, given: ToolOptions) -> Tool:
    cls = _class_of(thing)
    options = given.over(options_of(cls) or NO_OPTIONS)
    actions = _actions(thing)
    spec = _spec(
        options.name or cls.__name__,
        options.description or _class_description(cls),
        [capability_of(action, options) for action in actions],
        replace(options, tags=(*(options.tags or ()), *_tags_of(actions))),
    )
    target = ObjectTarget(_shared(thing, users=1), {action.name: action.attribute for action in actions})
    return Tool(spec=spec, handler=HANDLER, target=target, origin=origin_of(cls))


def _tool_of_spec(spec: ToolSpec) -> Tool:
    if isinstance(spec, MCPServerSpec):
        return tool_of_server_spec(spec)
    if not isinstance(spec, FunctionToolSpec):
        raise SpecError(f"tool {spec.tool_id!r}: a {type(spec).__name__} names no code; use a FunctionToolSpec")
    if not spec.module_path:
        raise SpecError(f"tool {spec.tool_id!r}: module_path is empty; name the module its code stands in")
    methods: dict[str, str] = {}
    if not spec.capabilities:
        cls = _class_named_by(spec)
        actions = _actions(cls)
        methods = {action.name: action.attribute for action in actions}
        capabilities = [capability_of(action, NO_OPTIONS) for action in actions]
        spec = replace(spec, capabilities=capabilities, description=spec.description or _class_description(cls))
    shared = SharedObject(partial(make_named, spec), is_ended=bool(spec.class_name))
    origin = f"{spec.module_path}:{spec.class_name}".rstrip(":")
    return Tool(spec=spec, handler=HANDLER, target=ObjectTarget(shared, methods), origin=origin)


def _class_named_by(spec: FunctionToolSpec) -> type:
    try:
        found = import_named(spec)
    except CallError as error:
        raise SpecError(f"{error} To register it as it is, list its capabilities in the spec.") from error
    if not isinstance(found, type):
        raise SpecError(f"tool {spec.tool_id!r} lists no capabilities: name a class in class_name to read them from")
    return found


def _spec_of_one(name: str, signature: FunctionSignature | ForeignTool, options: ToolOptions) -> ToolSpec:
    description = options.description or signature.description
    capability = ToolCapability(
        name=name,
        description=description,
        parameters=signature.parameters,
        examples=[dict(example) for example in options.examples or ()],
        category=str(options.category or "general"),
        output=signature.output,
    )
    return _spec(name, description, [capability], options)


def _spec(name: str, description: str, capabilities: list[ToolCapability], options: ToolOptions) -> ToolSpec:
    return ToolSpec(
        tool_id=name,
        description=description,
        capabilities=capabilities,
        tags=list(dict.fromkeys(options.tags or ())),
        version=options.version or "1.0.0",
        enabled=options.enabled is not False,
        metadata=dict(options.metadata or ()),
        category=options.category or ToolCategory.GENERAL,
        subcategory=options.subcategory or "general",
        priority=1 if options.priority is None else options.priority,
        dependencies=list(options.dependencies or ()),
        effects=options.effects,
        limits=options.limits,
    )


def _is_function(thing: Any) -> bool:
    if isinstance(thing, partial) or (inspect.isroutine(thing) and callable(thing)):
        return True
    # An object that can be called is called, unless some of its methods say that they are the tool.
    return is_callable_object(thing) and not any(options_of(action.method) for action in actions_of(type(thing)))


def _read(function: Callable[..., Any]) -> FunctionSignature:
    signature = read_function(function)
    if next(iter(signature.parameters["properties"]), None) == "self":
        label = label_of(function)
        raise SpecError(
            f"{label!r} is a method without its object: register an object, or the method of one, "
            f"such as {label.rpartition('.')[0] or 'Class'}().{_name_of(function)}"
        )
    return signature


def _noted(function: Any) -> ToolOptions:
    if isinstance(function, partial):
        return options_of(function) or _noted(function.func)
    return options_of(type(function) if is_callable_object(function) else function) or NO_OPTIONS


def _name_of(function: Any) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>":
        raise SpecError(f"a lambda has no name: say name=…, or write a function, instead of {origin_of(function)}")
    return str(name)


def _class_of(thing: Any) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _actions(thing: Any) -> list[Action]:
    actions = actions_of(_class_of(thing))
    if not actions:
        raise SpecError(
            f"{thing!r} cannot become a tool: it is no function and has no public methods. "
            f"Give a function, or a class or object with methods."
        )
    return actions


def _shared(thing: Any, *, users: int) -> SharedObject:
    if not isinstance(thing, type):
        return SharedObject.of(thing, users=users)
    try:
        inspect.signature(thing).bind()
    except TypeError as error:
        raise SpecError(
            f"class {thing.__name__!r} cannot be made without arguments ({error}): "
            f"register an object of it, {thing.__name__}(…), instead"
        ) from None
    return SharedObject(partial(make, thing.__name__, thing, {}), users=users)


def _class_description(cls: type) -> str:
    doc = vars(cls).get("__doc__") or ""
    # What dataclasses write by themselves says nothing to a model.
    return "" if doc.startswith(f"{cls.__name__}(") else read_docstring(doc).description


def _tags_of(actions: Sequence[Action]) -> list[str]:
    return [tag for action in actions for tag in action.options.tags or ()]
