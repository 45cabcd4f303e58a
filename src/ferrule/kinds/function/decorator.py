"""`@tool`: marks a function, a class or a method as a tool, with options.

The decorator changes nothing: the decorated object stays callable, typed and importable, and only gets an attribute
with its options, which is read when it is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, TypeVar, Unpack, get_args, overload

from ferrule.core.names import did_you_mean
from ferrule.core.spec import NO_EFFECTS, Effects, Isolation, Limits, Placement, ToolCategory, is_above_zero
from ferrule.errors import SpecError

OPTIONS_ATTRIBUTE = "__ferrule_tool__"
"""The attribute of a decorated object that has its options."""

_EFFECT_OPTIONS = ("read_only", "idempotent", "destructive", "polling")
_LIMIT_OPTIONS = ("timeout", "bucket", "isolation", "max_output", "placement", "resources")

# Shared by all tools without such options.
_NO_LIMITS = Limits()

T = TypeVar("T")


class ToolKeywords(TypedDict, total=False):
    """The options of a tool, beside its type hints and its docstring."""

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
    cacheable: bool | float
    price: float
    examples: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The options of a tool. None means that an option is not set."""

    name: str | None = None
    description: str | None = None
    tags: tuple[str, ...] | None = None
    category: ToolCategory | str | None = None
    subcategory: str | None = None
    priority: int | None = None
    dependencies: tuple[str, ...] | None = None
    version: str | None = None
    timeout: float | None = None
    bucket: str | None = None
    isolation: Isolation | None = None
    max_output: int | None = None
    placement: Placement | None = None
    resources: Mapping[str, float] | None = None
    read_only: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None
    polling: bool | None = None
    cacheable: bool | float | None = None
    """True, or for how many seconds."""
    price: float | None = None
    """Of one call."""
    examples: tuple[Mapping[str, Any], ...] | None = None
    metadata: Mapping[str, Any] | None = None
    enabled: bool | None = None

    def explicit(self, *names: str) -> dict[str, Any]:
        """Return the options that are set, among these names or among all."""
        names = names or tuple(f.name for f in fields(self))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def with_defaults(self, defaults: ToolOptions) -> ToolOptions:
        """Return these options, and the defaults for options that are not set."""
        if self is NO_OPTIONS or defaults is NO_OPTIONS:
            return defaults if self is NO_OPTIONS else self
        return replace(defaults, **self.explicit())

    @property
    def effects(self) -> Effects:
        if not self.has_effects:
            return NO_EFFECTS
        flags = self.explicit(*_EFFECT_OPTIONS)
        if self.cacheable is None or self.cacheable is False:
            return Effects(**flags)
        if self.cacheable is True:
            return Effects(cacheable=True, **flags)
        return Effects(cacheable=True, cache_ttl=float(self.cacheable), **flags)

    @property
    def limits(self) -> Limits:
        return Limits(**self.explicit(*_LIMIT_OPTIONS)) if self.has_limits else _NO_LIMITS

    @property
    def has_effects(self) -> bool:
        return bool(self.explicit("cacheable", *_EFFECT_OPTIONS))

    @property
    def has_limits(self) -> bool:
        return bool(self.explicit(*_LIMIT_OPTIONS))


NO_OPTIONS = ToolOptions()


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


def options_of(thing: Any) -> ToolOptions | None:
    """Return the options that `@tool` set on this object itself. A class does not inherit options."""
    own = vars(thing) if isinstance(thing, type) else None
    options = getattr(thing, OPTIONS_ATTRIBUTE, None) if own is None else own.get(OPTIONS_ATTRIBUTE)
    return options if isinstance(options, ToolOptions) else None


def read_options(label: str, keywords: Mapping[str, Any]) -> ToolOptions:
    """Read options from keyword arguments. Raises SpecError, which names the tool and the invalid option."""
    if not keywords:
        return NO_OPTIONS
    names = [f.name for f in fields(ToolOptions)]
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
    sequences = {
        name: tuple(keywords[name]) for name in ("tags", "examples", "dependencies") if keywords.get(name) is not None
    }
    options = ToolOptions(**{**keywords, **sequences})
    try:
        _ = options.limits
    except SpecError as error:
        raise SpecError(f"tool {label!r}: {error}") from None
    return options


def label_of(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__)


def _set_options(thing: T, options: ToolOptions) -> T:
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
