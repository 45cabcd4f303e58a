"""Python code as tools: functions, classes, objects, and classes that a spec only names.

A function is a tool with one action of the same name. A class or an object is a tool whose actions are its methods;
`make_tool_per_action` makes a tool of each method instead. A class or an object with a `name`, a `description` and a
method `execute` is a tool of that name with one action.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, NoReturn, Unpack, cast

from ferrule.core.schema import FunctionSignature, read_function
from ferrule.core.schema.signature import is_callable_object, parse_docstring, unwrap_callable
from ferrule.core.spec import FunctionToolSpec, MCPServerSpec, Tool, ToolCapability, ToolCategory, ToolSpec
from ferrule.errors import CallError, LoadError, SpecError
from ferrule.kinds.frameworks import (
    ForeignTool,
    list_function_toolset,
    read_function_tool,
    read_langchain_tool,
    read_pydantic_ai_tool,
)
from ferrule.kinds.function.code_digest import digest_of_code, is_user_code
from ferrule.kinds.function.decorator import (
    EFFECT_OPTIONS,
    LIMIT_OPTIONS,
    NO_OPTIONS,
    OPTIONS_ATTRIBUTE,
    ToolKeywords,
    effects_of,
    label_of,
    limits_of,
    options_of,
    read_options,
    select_options,
    tool,
)
from ferrule.kinds.function.targets import (
    CLEANUP_METHODS,
    ObjectTarget,
    SharedObject,
    find_code_of_spec,
    import_class_or_module,
    make_instance,
    make_object_of_spec,
)
from ferrule.kinds.mcp.listing import make_tool_of_server_spec
from ferrule.kinds.source import LoadedFile, digest
from ferrule.process.python_module import ModuleVersion, load_or_explain, read_version

__all__ = ["ToolKeywords", "make_tool_per_action", "tool", "tool_of"]

HANDLER = "function"


def tool_of(thing: Any, **options: Unpack[ToolKeywords]) -> Tool:
    """Make a tool of a function, a class, an object, a spec or another framework's tool.

    Options override the options of `@tool`.
    """
    if isinstance(thing, ToolSpec):
        if options:
            raise SpecError(f"tool {thing.tool_id!r} has a spec: set {', '.join(options)} there")
        return _make_tool_of_spec(thing)
    explicit = read_options(label_of(thing), options)
    read_foreign_tool = _find_for_class(_TOOL_READERS, thing)
    if read_foreign_tool is not None:
        return convert_foreign_tool(read_foreign_tool(thing), explicit)
    if is_tool_object(thing):
        return _make_tool_of_tool_object(thing, explicit)
    if isinstance(thing, type) or not _is_function_like(thing):
        return _make_tool_of_methods(thing, explicit)
    function = thing.__func__ if isinstance(thing, staticmethod) else thing
    merged: ToolKeywords = {**_decorator_options(function), **explicit}
    spec = _single_action_spec(merged.get("name") or _name_of(function), _read_signature(function), merged)
    return Tool(spec=spec, handler=HANDLER, target=_FunctionTarget(function), origin=describe_origin(function))


def make_tool_per_action(thing: Any) -> list[Tool]:
    """Make a tool of each action of a class or an object. What has no actions becomes one tool."""
    is_one_tool = isinstance(thing, ToolSpec) or _find_for_class(_TOOL_READERS, thing) or is_tool_object(thing)
    if is_one_tool or (not isinstance(thing, type) and _is_function_like(thing)):
        return [tool_of(thing)]
    actions = _require_actions(thing)
    whole = _without_texts(options_of(_class_of(thing)) or NO_OPTIONS)
    shared = _make_shared_object(thing, tools=len(actions))
    tools = []
    for action in actions:
        spec = _single_action_spec(action.name, read_function(action.method), {**whole, **action.options})
        target = ObjectTarget(shared, {action.name: action.attribute})
        tools.append(Tool(spec=spec, handler=HANDLER, target=target, origin=describe_origin(action.method)))
    return tools


def collect_tools(thing: Any) -> list[Tool]:
    """Make all tools of anything that can be registered. Lists and toolsets of other frameworks have several."""
    if isinstance(thing, Tool):
        return [thing]
    list_items = _find_for_class(_TOOLKIT_READERS, thing)
    if list_items is None:
        return [tool_of(thing)]
    return [tool for each in list_items(thing) for tool in collect_tools(each)]


def convert_foreign_tool(foreign: ForeignTool, options: ToolKeywords, *, resource: Any = None) -> Tool:
    """Make a tool of another framework's tool. The `resource` that it needs is closed together with the tool."""
    merged: ToolKeywords = {**foreign.options, **options}
    spec = _single_action_spec(merged.get("name") or foreign.name, foreign, merged)
    target = _FunctionTarget(foreign.call) if resource is None else ResourceTarget(foreign.call, resource)
    return Tool(spec=spec, handler=HANDLER, target=target, origin=describe_origin(foreign.source_function))


def describe_origin(thing: Any) -> str:
    """Describe where a piece of code is defined: `shop.orders:cancel (orders.py:12)`."""
    below = unwrap_callable(thing)
    code = getattr(below, "__code__", None)
    named = f"{getattr(below, '__module__', None) or '?'}:{label_of(below)}"
    return named if code is None else f"{named} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


class _FunctionTarget:
    """The target of a tool that is one function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function

    @property
    def code_digest(self) -> str:
        return digest_of_code(self._function)


class ResourceTarget(_FunctionTarget):
    """The target of a function that needs an open resource, which is closed with the tool."""

    __slots__ = ("_resource",)

    def __init__(self, function: Callable[..., Any], resource: Any) -> None:
        super().__init__(function)
        self._resource = resource

    async def aclose(self) -> None:
        await self._resource.aclose()


def _make_tool_of_methods(thing: Any, explicit: ToolKeywords) -> Tool:
    cls = _class_of(thing)
    options: ToolKeywords = {**(options_of(cls) or NO_OPTIONS), **explicit}
    actions = _require_actions(thing)
    tags = [tag for each in (options, *(action.options for action in actions)) for tag in each.get("tags", ())]
    spec = _make_spec(
        options.get("name") or cls.__name__,
        options.get("description") or _class_description(cls),
        [make_capability(action, options) for action in actions],
        {**options, "tags": tags},
    )
    target = ObjectTarget(_make_shared_object(thing, tools=1), {action.name: action.attribute for action in actions})
    return Tool(spec=spec, handler=HANDLER, target=target, origin=describe_origin(cls))


def is_tool_object(thing: Any) -> bool:
    """Return whether a class or an object says itself which tool it is: by `name`, `description` and `execute`."""
    names = (getattr(thing, "name", None), getattr(thing, "description", None))
    return (
        all(isinstance(name, str) for name in names)
        and inspect.isroutine(getattr(thing, "execute", None))
        and not any(map(_is_decorated, find_actions(_class_of(thing))))
    )


def _is_decorated(action: MethodAction) -> bool:
    # A bare `@tool` on `execute` says nothing that its class does not say.
    return options_of(action.method) is not None and (bool(action.options) or action.attribute != "execute")


def _make_tool_of_tool_object(thing: Any, explicit: ToolKeywords) -> Tool:
    cls = _class_of(thing)
    options: ToolKeywords = {**(options_of(cls) or NO_OPTIONS), **explicit}
    signature = read_function(_bind_to_class(inspect.getattr_static(cls, "execute"), cls))
    declared = getattr(thing, "parameters", None)
    if isinstance(declared, dict):  # `execute(**kwargs)` says nothing about its parameters
        signature = replace(signature, parameters=ToolCapability("", "", declared).schema)
    description = options.get("description") or thing.description or signature.description
    name = options.get("name") or thing.name or cls.__name__
    target = ObjectTarget(_make_shared_object(thing, tools=1), {name: "execute"})
    spec = _single_action_spec(name, signature, {**options, "description": description})
    return Tool(spec=spec, handler=HANDLER, target=target, origin=describe_origin(cls))


def _make_tool_of_spec(spec: ToolSpec) -> Tool:
    if isinstance(spec, MCPServerSpec):
        return make_tool_of_server_spec(spec)
    if not isinstance(spec, FunctionToolSpec):
        raise SpecError(f"tool {spec.tool_id!r}: a {type(spec).__name__} does not name code; use a FunctionToolSpec")
    if not spec.module_path:
        raise SpecError(f"tool {spec.tool_id!r}: module_path is empty; name the module of its code")
    methods: dict[str, str] = {}
    if not spec.capabilities:
        try:
            cls = import_class_or_module(spec)
        except CallError as error:
            message = f"{error} To register it as it is, list its capabilities in the spec."
            raise SpecError(message) from error
        if not isinstance(cls, type):
            message = "lists no capabilities: name a class in class_name to read them from"
            raise SpecError(f"tool {spec.tool_id!r} {message}")
        actions = _require_actions(cls)
        methods = {action.name: action.attribute for action in actions}
        capabilities = [make_capability(action, NO_OPTIONS) for action in actions]
        spec = replace(spec, capabilities=capabilities, description=spec.description or _class_description(cls))
    shared = SharedObject(
        partial(make_object_of_spec, spec),
        find_code=partial(find_code_of_spec, spec),
        has_cleanup=bool(spec.class_name),
    )
    origin = f"{spec.module_path}:{spec.class_name}".rstrip(":")
    return Tool(spec=spec, handler=HANDLER, target=ObjectTarget(shared, methods), origin=origin)


def _single_action_spec(name: str, signature: FunctionSignature | ForeignTool, options: ToolKeywords) -> ToolSpec:
    capability = _describe_action(name, signature, options)
    return _make_spec(name, capability.description, [capability], options)


def _describe_action(name: str, signature: FunctionSignature | ForeignTool, options: ToolKeywords) -> ToolCapability:
    return ToolCapability(
        name=name,
        description=options.get("description") or signature.description,
        parameters=signature.parameters,
        examples=[dict(example) for example in options.get("examples", ())],
        category=str(options.get("category") or "general"),
        output=signature.output,
    )


def _make_spec(name: str, description: str, capabilities: list[ToolCapability], options: ToolKeywords) -> ToolSpec:
    return ToolSpec(
        tool_id=name,
        description=description,
        capabilities=capabilities,
        tags=list(dict.fromkeys(options.get("tags", ()))),
        version=options.get("version") or "1.0.0",
        enabled=options.get("enabled") is not False,
        metadata=dict(options.get("metadata", ())),
        category=options.get("category") or ToolCategory.GENERAL,
        subcategory=options.get("subcategory") or "general",
        priority=options.get("priority", 1),
        dependencies=list(options.get("dependencies", ())),
        effects=effects_of(options),
        limits=limits_of(options),
        price=options.get("price"),
    )


def _is_function_like(thing: Any) -> bool:
    if isinstance(thing, partial) or (inspect.isroutine(thing) and callable(thing)):
        return True
    # A callable object is a function, unless some of its methods are decorated.
    is_decorated = any(options_of(action.method) is not None for action in find_actions(type(thing)))
    return is_callable_object(thing) and not is_decorated


def _read_signature(function: Callable[..., Any]) -> FunctionSignature:
    signature = read_function(function)
    if next(iter(signature.parameters["properties"]), None) == "self":
        label = label_of(function)
        raise SpecError(
            f"{label!r} is a method without its object: register an object, or the method of one, "
            f"such as {label.rpartition('.')[0] or 'Class'}().{_name_of(function)}"
        )
    return signature


def _decorator_options(function: Any) -> ToolKeywords:
    if isinstance(function, partial):
        return options_of(function) or _decorator_options(function.func)
    return options_of(type(function) if is_callable_object(function) else function) or NO_OPTIONS


def _name_of(function: Any) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>":
        raise SpecError(
            f"a lambda has no name: pass name=…, or write a function, instead of {describe_origin(function)}"
        )
    return str(name)


def _class_of(thing: Any) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _require_actions(thing: Any) -> list[MethodAction]:
    actions = find_actions(_class_of(thing))
    if not actions:
        raise SpecError(
            f"{thing!r} cannot become a tool: it is not a function and has no public methods. "
            f"Give a function, or a class or object with methods."
        )
    return actions


def _make_shared_object(thing: Any, *, tools: int) -> SharedObject:
    if not isinstance(thing, type):
        return SharedObject.of(thing, tools=tools)
    try:
        inspect.signature(thing).bind()
    except TypeError as error:
        raise SpecError(
            f"class {thing.__name__!r} cannot be created without arguments ({error}): "
            f"register an object of it, {thing.__name__}(…), instead"
        ) from None
    make = partial(make_instance, thing.__name__, thing, {})
    return SharedObject(make, find_code=lambda: [thing], tools=tools)


def _class_description(cls: type) -> str:
    doc = vars(cls).get("__doc__") or ""
    # The docstring that dataclasses generate is of no use to a model.
    return "" if doc.startswith(f"{cls.__name__}(") else parse_docstring(doc).description


# The actions of a class

_TOOL_LEVEL_OPTIONS = ("version", "metadata", "subcategory", "priority", "dependencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAction:
    """A method that can be called as an action."""

    attribute: str
    method: Callable[..., Any]
    """Bound to the class instead of an object: its signature can be read, but it must not be called."""
    options: ToolKeywords

    @property
    def name(self) -> str:
        return self.options.get("name") or self.attribute


def find_actions(cls: type) -> list[MethodAction]:
    """Find the methods decorated with `@tool` or, when there are none, the public methods that users wrote."""
    methods = _find_methods(cls)
    decorated = {name: method for name, method in methods.items() if options_of(_unwrap_method(method)) is not None}
    chosen = decorated or {n: m for n, m in methods.items() if not n.startswith("_") and n not in CLEANUP_METHODS}
    actions = []
    for name, method in chosen.items():
        options = options_of(_unwrap_method(method)) or NO_OPTIONS
        actions.append(MethodAction(attribute=name, method=_bind_to_class(method, cls), options=options))
    return [action for action in actions if action.options.get("enabled") is not False]


def make_capability(action: MethodAction, whole: ToolKeywords) -> ToolCapability:
    """Make an action of a tool with several actions. Options that the action does not set come from the tool."""
    if misplaced := select_options(action.options, _TOOL_LEVEL_OPTIONS):
        raise SpecError(
            f"action {action.name!r}: {' and '.join(misplaced)} can only be set for a whole tool. "
            f"Set it on the class, or register each method as a tool of its own."
        )
    options: ToolKeywords = {**_without_texts(whole), **action.options}
    return replace(
        _describe_action(action.name, read_function(action.method), options),
        effects=effects_of(options) if select_options(action.options, EFFECT_OPTIONS) else None,
        limits=limits_of(options) if select_options(action.options, LIMIT_OPTIONS) else None,
        price=action.options.get("price"),
    )


def _without_texts(whole: ToolKeywords) -> ToolKeywords:
    """Return the options of a class without those that describe the class alone."""
    return cast(ToolKeywords, {k: v for k, v in whole.items() if k not in ("name", "description", "examples")})


def _find_methods(cls: type) -> dict[str, Any]:
    """Find methods by name, in order of definition, bases first. A class overrides what its bases have."""
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if is_user_code(base, cls):
            for name, value in vars(base).items():
                # Properties are read, not called; a class inside a class is not a method of it.
                if isinstance(value, (staticmethod, classmethod)) or (inspect.isroutine(value) and callable(value)):
                    methods[name] = value
                else:
                    methods.pop(name, None)
    return {name: method for name, method in methods.items() if not (name.startswith("__") and name.endswith("__"))}


def _unwrap_method(method: Any) -> Any:
    return method.__func__ if isinstance(method, (staticmethod, classmethod)) else method


def _bind_to_class(method: Any, cls: type) -> Callable[..., Any]:
    function: Callable[..., Any] = _unwrap_method(method)
    return function if isinstance(method, staticmethod) else MethodType(function, cls)


# Tools and toolkits of other frameworks are recognized by the names of their classes: no framework is imported to find
# out whether an object is one of its tools. The nearest class in the object's method resolution order decides.


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


def _find_for_class(table: dict[str, Callable[[Any], Any]], thing: Any) -> Callable[[Any], Any] | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(thing).__mro__)
    return next((table[name] for name in names if name in table), None)


# Tools in Python files: every function and class of a file that is decorated with `@tool`, or, in a file without any,
# every class with a `name`, a `description` and a method `execute`. What a file imports from elsewhere is not its tool,
# decorated or not. How a file becomes a module: see `ferrule.process.python_module`.


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

    def is_value(cls: type) -> bool:
        values = (BaseException, Enum, tuple, dict)
        return issubclass(cls, values) or hasattr(cls, "model_fields") or is_dataclass(cls) or inspect.isabstract(cls)

    public = [cls for cls in own if cls not in bases and not cls.__name__.startswith("_")]
    return [cls for cls in public if not is_value(cls) and find_actions(cls)]


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
