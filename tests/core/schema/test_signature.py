"""Functions of every kind, their hidden context, and arguments on their way into them."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Image, Text
from ferrule.core.schema.binding import bind_unchanged
from ferrule.errors import InvalidArguments, SpecError
from tests.core.schema.read_signature import call, properties, read

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Order:
    number: int
    parts: list[Order]


def test_hints_in_quotes_are_resolved():
    def fn(order: Order, days: list[date], name: str = "x") -> Order:
        return order

    assert read(fn).parameters["required"] == ["order", "days"]
    assert call(fn, {"order": {"number": 1, "parts": [{"number": 2, "parts": []}]}, "days": []}).parts == [Order(2, [])]


def test_a_return_hint_that_cannot_be_resolved_is_ignored():
    def fn(a: int) -> Fraction: ...  # type: ignore[empty-body]

    assert read(fn).output is None
    assert properties(fn) == {"a": {"type": "integer"}}


def test_a_parameter_hint_that_cannot_be_resolved_is_an_error_with_its_location():
    def half(part: Fraction): ...

    with pytest.raises(
        SpecError, match=r"half.*'Fraction' of parameter 'part'.*top level of 'tests.core.schema.test_sig"
    ):
        read(half)


def test_the_context_is_hidden_and_passed():
    def fn(a: int, context: ToolExecutionContext):
        return a, context

    context = ToolExecutionContext(caller_id="me")
    assert read(fn).context_parameter == "context"
    assert properties(fn) == {"a": {"type": "integer"}}
    assert call(fn, {"a": 1}, context) == (1, context)


@pytest.mark.parametrize(
    "hint",
    [
        Optional[ToolExecutionContext],  # noqa: UP045
        ToolExecutionContext | None,
        Annotated[ToolExecutionContext, "who asks"],
        "ToolExecutionContext",
    ],
)
def test_the_context_may_be_optional_quoted_or_annotated(hint):
    def fn(ctx=None, a: int = 0):
        return ctx

    fn.__annotations__["ctx"] = hint
    context = ToolExecutionContext()
    assert list(properties(fn)) == ["a"]
    assert call(fn, {}, context) == context


def test_the_context_is_known_by_name_where_its_import_is_only_for_checking():
    names: dict[str, Any] = {}
    exec("def fn(a: 'int', ctx: 'ToolExecutionContext'): return ctx", names)
    context = ToolExecutionContext()
    assert call(names["fn"], {"a": 1}, context) == context


def test_a_context_by_position_is_passed_by_position():
    def fn(context: ToolExecutionContext, /, a: int = 0):
        return context, a

    context = ToolExecutionContext()
    assert call(fn, {"a": 1}, context) == (context, 1)


def test_two_context_parameters_are_refused():
    def fn(a: ToolExecutionContext, b: ToolExecutionContext): ...

    with pytest.raises(SpecError, match=r"several context parameters \(a, b\)"):
        read(fn)


def test_plain_arguments_are_passed_unchanged():
    def fn(a: int, *, b: list[str] | None = None, **more: Any): ...

    params = {"a": 1, "b": ["x"], "z": 2}
    assert read(fn).bind is bind_unchanged
    assert read(fn).bind(params, ToolExecutionContext())[1] is params


def test_bind_does_not_change_its_arguments():
    def fn(day: date, context: ToolExecutionContext, /, *rest: int): ...

    params = {"day": "2024-01-02", "rest": [1]}
    read(fn).bind(params, ToolExecutionContext())
    assert params == {"day": "2024-01-02", "rest": [1]}


def test_positional_only_parameters_are_passed_by_position():
    def fn(a: int, b: Any = math, /, c: int = 3):
        return a, b, c

    assert call(fn, {"a": 1}) == (1, math, 3)
    assert call(fn, {"a": 1, "b": 2, "c": 4}) == (1, 2, 4)
    with pytest.raises(InvalidArguments, match="missing: a"):
        read(fn).bind({}, ToolExecutionContext())


def test_star_args_are_an_array():
    def fn(first: str, second: str = "-", *days: date, last: int = 0):
        return first, second, days, last

    assert properties(fn)["days"] == {"type": "array", "items": {"type": "string", "format": "date"}}
    assert read(fn).parameters["required"] == ["first"]
    assert call(fn, {"first": "a", "days": ["2024-01-02"], "last": 1}) == ("a", "-", (date(2024, 1, 2),), 1)
    assert call(fn, {"first": "a"}) == ("a", "-", (), 0)


def test_star_star_kwargs_allow_more_parameters():
    def anything(a: int, **more): ...
    def numbers(**more: int): ...
    def days(a: int = 0, **more: date):
        return more

    assert read(anything).parameters["additionalProperties"] is True
    assert read(numbers).parameters["additionalProperties"] == {"type": "integer"}
    assert call(days, {"a": 1, "x": "2024-01-02"}) == {"x": date(2024, 1, 2)}


def test_functions_without_kwargs_do_not_mention_additional_properties():
    def fn(): ...

    assert read(fn).parameters == {"type": "object", "properties": {}}


def test_keyword_arguments_of_a_partial_are_not_parameters():
    def send(text: str, retries: int = 3, api_key: str = ""):
        """Send a text.

        Args:
            text: what to send
        """
        return text, retries, api_key

    signature = read(functools.partial(send, api_key="hush"))
    assert "hush" not in str(signature)
    assert list(signature.parameters["properties"]) == ["text", "retries"]
    assert signature.description == "Send a text."
    assert call(functools.partial(send, "hi", api_key="hush"), {"retries": 1}) == ("hi", 1, "hush")


def test_methods_have_no_self():
    class Shop:
        def sell(self, what: str) -> str:
            """Sell it."""
            return what

        @classmethod
        def open(cls, at: int):
            return cls, at

        @staticmethod
        def price(what: str): ...

    for method, names in ((Shop().sell, ["what"]), (Shop.open, ["at"]), (Shop.price, ["what"])):
        assert list(properties(method)) == names
    assert call(Shop.open, {"at": 8}) == (Shop, 8)


def test_an_overriding_method_inherits_its_docstring():
    class Base:
        def run(self):
            """Run."""

    class Fast(Base):
        def run(self): ...

    assert read(Fast().run).description == "Run."


def test_callable_objects_are_read_like_functions():
    class Adder:
        """Adds."""

        def __init__(self, to: int) -> None:
            self.to = to

        async def __call__(self, n: int) -> int:
            return self.to + n

    assert read(Adder(1)).kind == "async"
    assert read(Adder(1)).description == "Adds."
    assert list(properties(Adder(1))) == ["n"]


def test_a_wrapped_function_shows_what_it_wraps():
    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @wrap
    def fn(day: date):
        """Do."""
        return day

    assert (read(fn).description, list(properties(fn))) == ("Do.", ["day"])
    assert call(fn, {"day": "2024-01-02"}) == date(2024, 1, 2)


def test_cached_and_builtin_functions_are_read():
    @functools.lru_cache
    def slow(n: int) -> int:
        return n

    assert properties(slow) == {"n": {"type": "integer"}}
    assert call(math.sqrt, {"x": 4}) == 2


def test_a_function_without_a_readable_signature_is_refused():
    with pytest.raises(SpecError, match="'max' cannot be read.*Wrap it in a function with type hints"):
        read(max)


def test_sync_async_and_generator_functions_are_distinguished():
    def plain() -> int: ...  # type: ignore[empty-body]
    async def later() -> int: ...  # type: ignore[empty-body]
    def pieces() -> Iterator[int]:
        yield 1

    async def later_pieces() -> AsyncIterator[int]:
        yield 1

    kinds = [read(fn).kind for fn in (plain, later, pieces, later_pieces, functools.partial(later))]
    assert kinds == ["sync", "async", "generator", "async_generator", "async"]
    assert [read(fn).output for fn in (pieces, later_pieces)] == [None, None]


def test_content_has_no_output_schema():
    def image() -> Image: ...  # type: ignore[empty-body]
    def images() -> list[Text | Image] | None: ...

    assert [read(fn).output for fn in (image, images)] == [None, None]
