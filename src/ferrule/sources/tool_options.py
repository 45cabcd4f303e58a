"""`@tool`: saying of a function, a class or a method that it is a tool, and how it may be run.

The decorator changes nothing: what it decorates stays what it was, callable, typed and importable, and only carries
a note that is read when it is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, TypeVar, Unpack, get_args, overload

from ferrule.errors import SpecError
from ferrule.names import did_you_mean
from ferrule.spec import Effects, Isolation, Limits, ToolCategory

NOTE = "__ferrule_tool__"
"""The attribute that holds a decorated thing's options."""

_EFFECTS = ("read_only", "idempotent", "destructive", "polling")
_LIMITS = ("timeout", "bucket", "isolation", "max_output")

# Shared by all the tools that say nothing about theirs.
_NO_EFFECTS = Effects()
_NO_LIMITS = Limits()

T = TypeVar("T")


class ToolKeywords(TypedDict, total=False):
    """What can be said about a tool beside its hints and its docstring."""

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
    read_only: bool
    idempotent: bool
    destructive: bool
    polling: bool
    cacheable: bool | float
    examples: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What was said about a tool. None means that nothing was."""

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
    read_only: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None
    polling: bool | None = None
    cacheable: bool | float | None = None
    """True, or for how many seconds."""
    examples: tuple[Mapping[str, Any], ...] | None = None
    metadata: Mapping[str, Any] | None = None
    enabled: bool | None = None

    def said(self, *names: str) -> dict[str, Any]:
        """The options that were given, of these or of all."""
        names = names or tuple(f.name for f in fields(self))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def over(self, wider: ToolOptions) -> ToolOptions:
        """These options, and those of something wider where these say nothing."""
        if self is NO_OPTIONS or wider is NO_OPTIONS:
            return wider if self is NO_OPTIONS else self
        return replace(wider, **self.said())

    @property
    def effects(self) -> Effects:
        if not self.says_effects:
            return _NO_EFFECTS
        said = self.said(*_EFFECTS)
        if self.cacheable is None or self.cacheable is False:
            return Effects(**said)
        if self.cacheable is True:
            return Effects(cacheable=True, **said)
        return Effects(cacheable=True, cache_ttl=float(self.cacheable), **said)

    @property
    def limits(self) -> Limits:
        return Limits(**self.said(*_LIMITS)) if self.says_limits else _NO_LIMITS

    @property
    def says_effects(self) -> bool:
        return bool(self.said("cacheable", *_EFFECTS))

    @property
    def says_limits(self) -> bool:
        return bool(self.said(*_LIMITS))


NO_OPTIONS = ToolOptions()


@overload
def tool(thing: T, /) -> T: ...
@overload
def tool(**options: Unpack[ToolKeywords]) -> Callable[[T], T]: ...
def tool(thing: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function, a class or a method: bare, or with options.

    `cacheable` is True or a number of seconds. `isolation` says where it runs: see `ferrule.spec.Isolation`.
    """
    if isinstance(thing, str):
        raise SpecError(f"@tool({thing!r}) does not say what {thing!r} is: write @tool(name={thing!r})")
    if thing is not None:
        return _note(thing, NO_OPTIONS)
    return lambda decorated: _note(decorated, read_options(label_of(decorated), options))


def options_of(thing: Any) -> ToolOptions | None:
    """What `@tool` noted on this very thing; a class does not inherit the note of its base."""
    noted = vars(thing).get(NOTE) if isinstance(thing, type) else getattr(thing, NOTE, None)
    return noted if isinstance(noted, ToolOptions) else None


def read_options(label: str, said: Mapping[str, Any]) -> ToolOptions:
    """Options as they were written; a SpecError names the tool and the option that cannot be."""
    if not said:
        return NO_OPTIONS
    known = [f.name for f in fields(ToolOptions)]
    for name in said:
        if name not in known:
            hint = did_you_mean(name, known) or f" The options are: {', '.join(known)}."
            raise SpecError(f"tool {label!r}: there is no option {name!r}.{hint}")
    for name in ("tags", "dependencies"):
        if isinstance(said.get(name), str):
            raise SpecError(f"tool {label!r}: {name} must be a list: write {name}=[{said[name]!r}]")
    if said.get("isolation", "auto") not in get_args(Isolation):
        wanted = ", ".join(get_args(Isolation))
        raise SpecError(f"tool {label!r}: isolation must be one of {wanted}, not {said['isolation']!r}")
    cacheable = said.get("cacheable")
    if cacheable is not None and not isinstance(cacheable, bool) and not cacheable > 0:
        raise SpecError(f"tool {label!r}: cacheable must be True, False or more than 0 seconds, not {cacheable!r}")
    listed = {name: tuple(said[name]) for name in ("tags", "examples", "dependencies") if said.get(name) is not None}
    options = ToolOptions(**{**said, **listed})
    try:
        _ = options.limits
    except SpecError as error:
        raise SpecError(f"tool {label!r}: {error}") from None
    return options


def label_of(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__)


def _note(thing: T, options: ToolOptions) -> T:
    holder = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
    if not callable(holder):
        raise SpecError(f"@tool decorates functions, classes and methods, not {thing!r}")
    try:
        setattr(holder, NOTE, options)
    except (AttributeError, TypeError):
        raise SpecError(
            f"{label_of(thing)!r} is not Python code that can carry a note: "
            f"register it with its options instead of decorating it"
        ) from None
    return thing
