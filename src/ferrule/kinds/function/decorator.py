"""`@tool`: marks a function, a class or a method as a tool, with options.

The decorator changes nothing: the decorated object stays callable, typed and importable, and only gets an attribute
with its options, which is read when it is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast, get_args, overload

from ferrule.core.names import did_you_mean
from ferrule.core.spec import NO_EFFECTS, Effects, Isolation, Limits, Placement, ToolCategory, is_above_zero
from ferrule.errors import SpecError

OPTIONS_ATTRIBUTE = "__ferrule_tool__"
"""The attribute of a decorated object that has its options."""

EFFECT_OPTIONS = ("read_only", "idempotent", "destructive", "polling", "trusted_output", "cacheable")
LIMIT_OPTIONS = ("timeout", "bucket", "isolation", "max_output", "placement", "resources")

# Shared by all tools without such options.
_NO_LIMITS = Limits()

T = TypeVar("T")


class ToolKeywords(TypedDict, total=False):
    """The options of a tool, beside its type hints and its docstring. An option that is not set is absent."""

    name: str
    description: str
    tags: Sequence[str]
    category: ToolCategory | str
    subcategory: str
    priority: int
    dependencies: Sequence[str]
    version: str
    timeout: float
    bucket: str
    isolation: Isolation
    max_output: int
    placement: Placement
    resources: Mapping[str, float]
    read_only: bool
    idempotent: bool
    destructive: bool
    polling: bool
    trusted_output: bool
    cacheable: bool | float
    """True, or for how many seconds."""
    price: float
    """Of one call."""
    examples: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    enabled: bool


NO_OPTIONS: Final[ToolKeywords] = {}


def select_options(options: ToolKeywords, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


def effects_of(options: ToolKeywords) -> Effects:
    flags = select_options(options, EFFECT_OPTIONS)
    if not flags:
        return NO_EFFECTS
    cacheable = flags.pop("cacheable", False)
    if cacheable is not True and cacheable is not False:
        flags["cache_ttl"] = float(cacheable)
    return Effects(cacheable=bool(cacheable), **flags)


def limits_of(options: ToolKeywords) -> Limits:
    limits = select_options(options, LIMIT_OPTIONS)
    return Limits(**limits) if limits else _NO_LIMITS


@overload
def tool(thing: T, /) -> T: ...
@overload
def tool(**options: Unpack[ToolKeywords]) -> Callable[[T], T]: ...
def tool(thing: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function, a class or a method: bare, or with options.

    `cacheable` is True or a number of seconds. `isolation` determines where it runs: see `ferrule.core.spec.Isolation`.
    With `placement="cluster"` or `resources`, it runs on a node of the cluster if the engine has one.
    """
    if isinstance(thing, str):
        raise SpecError(f"@tool({thing!r}) does not say what {thing!r} is: write @tool(name={thing!r})")
    if thing is not None:
        return _set_options(thing, NO_OPTIONS)
    return lambda decorated: _set_options(decorated, read_options(label_of(decorated), options))


def options_of(thing: Any) -> ToolKeywords | None:
    """Return the options that `@tool` set on this object itself. A class does not inherit options."""
    own = vars(thing) if isinstance(thing, type) else None
    options = getattr(thing, OPTIONS_ATTRIBUTE, None) if own is None else own.get(OPTIONS_ATTRIBUTE)
    return cast(ToolKeywords, options) if isinstance(options, dict) else None


def read_options(label: str, keywords: Mapping[str, Any]) -> ToolKeywords:
    """Read options from keyword arguments. Raises SpecError, which names the tool and the invalid option."""
    if not keywords:
        return NO_OPTIONS
    names = list(ToolKeywords.__annotations__)
    for name in keywords:
        if name not in names:
            hint = did_you_mean(name, names) or f" The options are: {', '.join(names)}."
            raise SpecError(f"tool {label!r}: there is no option {name!r}.{hint}")
    for name in ("tags", "dependencies"):
        if isinstance(keywords.get(name), str):
            raise SpecError(f"tool {label!r}: {name} must be a list: write {name}=[{keywords[name]!r}]")
    for name, choices in (("isolation", get_args(Isolation)), ("placement", get_args(Placement))):
        if keywords.get(name, choices[0]) not in choices:
            raise SpecError(f"tool {label!r}: {name} must be one of {', '.join(choices)}, not {keywords[name]!r}")
    cacheable = keywords.get("cacheable")
    if cacheable is not None and not isinstance(cacheable, bool) and not is_above_zero(cacheable):
        raise SpecError(f"tool {label!r}: cacheable must be True, False or more than 0 seconds, not {cacheable!r}")
    options = {name: value for name, value in keywords.items() if value is not None}
    options |= {name: tuple(options[name]) for name in ("tags", "examples", "dependencies") if name in options}
    try:
        limits_of(cast(ToolKeywords, options))
    except SpecError as error:
        raise SpecError(f"tool {label!r}: {error}") from None
    return cast(ToolKeywords, options)


def label_of(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__)


def _set_options(thing: T, options: ToolKeywords) -> T:
    holder = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
    if not callable(holder):
        raise SpecError(f"@tool decorates functions, classes and methods, not {thing!r}")
    try:
        setattr(holder, OPTIONS_ATTRIBUTE, options)
    except (AttributeError, TypeError):
        raise SpecError(
            f"{label_of(thing)!r} is not written in Python and cannot be decorated: "
            "register it with its options instead"
        ) from None
    return thing
