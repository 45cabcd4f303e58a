"""Hints whose values are made from JSON."""

import enum
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
from uuid import UUID

import pytest
from annotated_types import Predicate
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from ferrule.core.call import ToolExecutionContext
from ferrule.core.schema import Secret
from ferrule.errors import InvalidArguments, SpecError
from tests.core.schema.read_signature import call, properties, read

DAY = date(2024, 5, 6)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    """A place on the map."""

    x: int
    y: int = 0


class Query(BaseModel):
    """What to look for."""

    text: str = Field(min_length=1)
    since: date | None = None
    at: list[Point] = []


class Film(TypedDict):
    title: str
    released: NotRequired[date]


class Span(NamedTuple):
    start: int
    end: int = 10


class Tree(TypedDict):
    name: str
    children: "list[Tree]"


@dataclass
class Node:
    value: int
    following: Optional["Node"] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


@pytest.mark.parametrize(
    ("hint", "schema", "value", "expected"),
    [
        (Colour, {"type": "string", "enum": ["red", "green"]}, "red", Colour.RED),
        (Level, {"type": "integer", "enum": [1, 2]}, 2, Level.HIGH),
        (Literal[Colour.RED], {"type": "string", "const": "red"}, "red", Colour.RED),
        (datetime, {"type": "string", "format": "date-time"}, "2024-05-06T07:08:09", datetime(2024, 5, 6, 7, 8, 9)),
        (date, {"type": "string", "format": "date"}, "2024-05-06", DAY),
        (time, {"type": "string", "format": "time"}, "07:08", time(7, 8)),
        (timedelta, {"type": "string", "format": "duration"}, "PT90S", timedelta(seconds=90)),
        (UUID, {"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b")),
        (bytes, {"type": "string", "contentEncoding": "base64"}, "+/-_aGk=", b"\xfb\xff\xbfhi"),
        (list[bytes], {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}, ["aGk"], [b"hi"]),
        (set[int], {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [1, 2], {1, 2}),
        (frozenset[str], {"type": "array", "uniqueItems": True, "items": {"type": "string"}}, ["a"], frozenset("a")),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, [1, 2], (1, 2)),
        (dict[int, str], {"type": "object", "additionalProperties": {"type": "string"}}, {"1": "a"}, {1: "a"}),
        (list[Colour], {"type": "array", "items": {"type": "string", "enum": ["red", "green"]}}, ["red"], [Colour.RED]),
        (date | None, {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, None, None),
        (int | date, {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date"}]}, "2024-05-06", DAY),
        (Annotated[int, AfterValidator(lambda n: n * 2)], {"type": "integer"}, 4, 8),
        (SecretStr, {"type": "string", "writeOnly": True, "format": "password"}, "hush", SecretStr("hush")),
    ],
)  # fmt: skip
def test_a_value_is_converted_from_json(hint, schema, value, expected):
    def fn(x):
        return x

    fn.__annotations__["x"] = hint
    assert properties(fn)["x"] == schema
    assert call(fn, {"x": value}) == expected


def test_decimals_keep_their_digits():
    def fn(price: Decimal):
        return price

    assert call(fn, {"price": "12.10"}) == Decimal("12.10")
    assert str(call(fn, {"price": "12.10"})) == "12.10"


def test_tuples_have_a_type_for_each_place():
    def fn(pair: tuple[int, str]):
        return pair

    assert properties(fn)["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    assert call(fn, {"pair": [1, "a"]}) == (1, "a")


def test_a_dataclass_is_an_object():
    def fn(point: Point):
        return point

    assert properties(fn)["point"] == {
        "type": "object",
        "description": "A place on the map.",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    assert call(fn, {"point": {"x": 1}}) == Point(1, 0)


def test_a_pydantic_model_keeps_its_limits_and_its_inner_models():
    def fn(query: Query):
        """Search.

        Args:
            query: the query
        """
        return query

    schema = properties(fn)["query"]
    assert schema["description"] == "the query"
    assert schema["properties"]["text"] == {"type": "string", "minLength": 1}
    assert schema["properties"]["at"]["items"]["properties"]["y"] == {"type": "integer", "default": 0}
    expected = call(fn, {"query": {"text": "a", "since": "2024-01-02", "at": [{"x": 1}]}})
    assert expected == Query(text="a", since=date(2024, 1, 2), at=[Point(1)])


def test_a_typed_dict_of_the_standard_library_is_an_object():
    def fn(films: list[Film]):
        return films

    items = properties(fn)["films"]["items"]
    assert items["required"] == ["title"]
    assert items["properties"]["released"] == {"type": "string", "format": "date"}
    assert call(fn, {"films": [{"title": "M", "released": "1931-05-11"}]}) == [
        {"title": "M", "released": date(1931, 5, 11)}
    ]


def test_a_named_tuple_is_described_as_an_object():
    def fn(span: Span):
        return span

    assert properties(fn)["span"] == {
        "type": "object",
        "properties": {"start": {"type": "integer"}, "end": {"type": "integer", "default": 10}},
        "required": ["start"],
    }
    assert call(fn, {"span": {"start": 1}}) == Span(1, 10)


@pytest.mark.parametrize("hint", [Tree, list[Tree], Tree | None])
def test_a_type_that_contains_itself_stays_a_definition(hint):
    def fn(tree):
        return tree

    fn.__annotations__["tree"] = hint
    assert read(fn).parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    leaf = {"name": "b", "children": []}
    value: Any = {"name": "a", "children": [leaf]}
    assert call(fn, {"tree": [value] if hint == list[Tree] else value}) is not None


def test_a_recursive_dataclass_is_converted_completely():
    def fn(node: Node):
        return node

    assert call(fn, {"node": {"value": 1, "following": {"value": 2}}}) == Node(1, Node(2))


def test_a_model_used_twice_is_defined_once():
    def fn(start: Point, end: Point, colour: Colour = Colour.RED, other: Colour = Colour.GREEN):
        return start, end, colour

    schema = read(fn).parameters
    assert schema["properties"]["start"] == schema["properties"]["end"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["colour"] == {"type": "string", "enum": ["red", "green"], "default": "red"}
    assert list(schema["$defs"]) == ["Point"]
    assert call(fn, {"start": {"x": 1}, "end": {"x": 2}, "colour": "green"})[1:] == (Point(2), Colour.GREEN)


def test_two_classes_with_one_name_have_two_definitions():
    def fn(a, b, c, d): ...

    other = make_dataclass("Point", [("z", str)])
    fn.__annotations__.update(a=Point, b=other, c=Point, d=other)
    definitions = read(fn).parameters["$defs"]
    assert sorted(next(iter(d["properties"])) for d in definitions.values()) == ["x", "z"]


def test_a_tagged_union_finds_its_model():
    def fn(pet: Annotated[Cat | Dog, Field(discriminator="kind")]):
        return pet

    assert "discriminator" not in properties(fn)["pet"]
    assert call(fn, {"pet": {"kind": "cat"}}) == Cat(kind="cat")


def test_defaults_that_are_objects_stand_in_the_schema_as_json():
    def fn(
        point: Point = Point(1), path: Path = Path("here"), days: frozenset[int] = frozenset({1}), at: date = None  # type: ignore[assignment]  # noqa: B008
    ):  # fmt: skip
        return point, path, days, at

    defaults = [schema["default"] for schema in properties(fn).values()]
    assert defaults == [{"x": 1, "y": 0}, "here", [1], None]
    assert call(fn, {"point": {"x": 1, "y": 0}, "path": "here"}) == (Point(1), Path("here"), frozenset({1}), None)


def test_a_default_that_does_not_match_its_hint_is_left_to_the_function():
    unset: Any = "unset"

    def fn(colour: Colour = unset):
        return colour

    assert "default" not in properties(fn)["colour"]
    assert call(fn, {}) == "unset"


def test_secrets_are_marked_inside_models_too():
    @dataclass
    class Login:
        user: str
        password: Annotated[str, Secret]

    def fn(login, path): ...

    fn.__annotations__.update(login=Login, path=Annotated[Path, Secret] | None)
    assert properties(fn)["login"]["properties"]["password"] == {"type": "string", "writeOnly": True}
    assert properties(fn)["path"]["writeOnly"] is True


def test_a_value_that_matches_the_schema_but_not_the_type_is_invalid():
    def fn(when: datetime, even: Annotated[int, Predicate(lambda n: n % 2 == 0)], data: bytes): ...

    with pytest.raises(InvalidArguments, match="when: Input should be a valid datetime") as caught:
        call(fn, {"when": "tomorrow", "even": 3, "data": "!!"})
    assert [error["path"] for error in caught.value.errors] == ["when", "even", "data"]
    assert caught.value.errors[0]["received"] == "tomorrow"


def test_a_refused_secret_is_not_repeated():
    def check(text: str) -> str:
        raise ValueError("too short")

    def fn(key): ...

    fn.__annotations__["key"] = Annotated[str, Secret, AfterValidator(check)]
    with pytest.raises(InvalidArguments, match="too short") as caught:
        call(fn, {"key": "hunter2"})
    assert "hunter2" not in str(caught.value) + str(caught.value.errors)


def test_inner_errors_say_where():
    def fn(query: Query): ...

    with pytest.raises(InvalidArguments, match=r"query\.since: "):
        read(fn).bind({"query": {"text": "a", "since": "never"}}, ToolExecutionContext())


@pytest.mark.parametrize("hint", [range, type, lambda: None, "NoSuchName", list[range]])
def test_a_hint_json_cannot_express_is_refused_with_names_and_advice(hint):
    def pick(choice): ...

    pick.__annotations__["choice"] = hint
    with pytest.raises(SpecError, match=r"pick'.*'choice'.*(Use text|Import or define)"):
        read(pick)


def test_return_hints_become_output_schemas():
    def first() -> Point: ...  # type: ignore[empty-body]
    def many() -> list[date]: ...  # type: ignore[empty-body]
    def plain() -> dict[str, int]: ...  # type: ignore[empty-body]
    def nothing() -> None: ...
    def unsaid(): ...
    def inexpressible() -> range: ...  # type: ignore[empty-body]

    assert (read(first).output or {})["required"] == ["x"]
    assert read(many).output == {"type": "array", "items": {"type": "string", "format": "date"}}
    assert read(plain).output == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert read(nothing).output == {"type": "null"}
    assert [read(fn).output for fn in (unsaid, inexpressible)] == [None, None]


def test_mutable_defaults_of_dataclasses_are_created_by_the_dataclass():
    @dataclass
    class Options:
        tags: list[str] = field(default_factory=list)

    def fn(options): ...

    fn.__annotations__["options"] = Options
    args, kwargs = read(fn).bind({"options": {}}, ToolExecutionContext())
    assert kwargs == {"options": Options([])}
