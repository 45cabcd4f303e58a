"""Hints that mean the same in Python and in JSON: schemas by hand, arguments passed as they are."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, List, Literal, NewType, Optional, Union  # noqa: UP035 (people write them)

import pytest
from annotated_types import Ge, Interval, Len, MultipleOf
from pydantic import Field, PositiveInt, conint

from ferrule.core.schema import Secret
from ferrule.core.schema.binding import bind_unchanged
from tests.core.schema.read_signature import call, properties, read

UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (Any, {}),
        (object, {}),
        (any, {}),
        (UserId, {"type": "integer"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
        (list[Any], {"type": "array"}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (Iterable[list[str]], {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "b", None], {"enum": [1, "b", None]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[list[int], None], {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),  # noqa: UP007
        (int | Any, {}),
        (Annotated[int, Ge(1)], {"type": "integer", "minimum": 1}),
        (Annotated[float, Interval(gt=0, le=1)], {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        (Annotated[int, MultipleOf(5)], {"type": "integer", "multipleOf": 5}),
        (Annotated[str, Len(2, 4)], {"type": "string", "minLength": 2, "maxLength": 4}),
        (Annotated[list[int], Len(1)], {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
        (
            Annotated[dict[str, int], Len(1)],
            {"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}},
        ),
        (PositiveInt, {"type": "integer", "exclusiveMinimum": 0}),
        (conint(ge=3), {"type": "integer", "minimum": 3}),
        (Annotated[str, Field(pattern="^a", max_length=3)], {"type": "string", "pattern": "^a", "maxLength": 3}),
        (Annotated[str, Secret], {"type": "string", "writeOnly": True}),
        (Annotated[str, Secret()] | None, {"anyOf": [{"type": "string"}, {"type": "null"}], "writeOnly": True}),
    ],
)
def test_a_plain_hint_has_a_schema_and_needs_no_conversion(hint, schema):
    def fn(x):
        return x

    fn.__annotations__["x"] = hint
    assert properties(fn) == {"x": schema}
    assert read(fn).bind is bind_unchanged


def test_a_parameter_without_a_hint_takes_anything():
    def fn(x, y=None):
        return x, y

    assert read(fn).parameters == {
        "type": "object",
        "properties": {"x": {}, "y": {"default": None}},
        "required": ["x"],
    }
    assert call(fn, {"x": [1]}) == ([1], None)


def test_defaults_make_parameters_optional_and_stand_in_the_schema():
    def fn(a: str, b: int = 3, c: list[str] = ["x"], d: bool = False):  # noqa: B006
        return a, b, c, d

    schema = read(fn).parameters
    assert schema["required"] == ["a"]
    assert [schema["properties"][name].get("default") for name in "abcd"] == [None, 3, ["x"], False]
    schema["properties"]["c"]["default"].append("y")
    assert fn("a") == ("a", 3, ["x"], False)


def test_a_default_json_cannot_express_is_left_to_the_function():
    nothing = object()

    def fn(a: Any = nothing, b: float = float("nan"), c: Any = (1, 2)):
        return a, c

    assert [set(schema) for schema in properties(fn).values()] == [set(), {"type"}, set()]
    assert "required" not in read(fn).parameters
    assert call(fn, {}) == (nothing, (1, 2))


def test_none_as_a_default_allows_none():
    def fn(a: int = None, b: str | None = None):  # type: ignore[assignment]
        return a, b

    optional = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert properties(fn)["a"] == optional
    assert call(fn, {"a": None}) == (None, None)


def test_the_default_of_a_secret_is_not_in_the_schema():
    def fn(token: Annotated[str, Secret] = "hush", key: Annotated[str, Secret] = None):  # type: ignore[assignment]
        return token

    assert properties(fn)["token"] == {"type": "string", "writeOnly": True}
    assert properties(fn)["key"]["writeOnly"] is True
    assert call(fn, {}) == "hush"


def test_descriptions_come_from_annotated_and_win_over_the_docstring():
    def fn(
        a: Annotated[int, "the first"],
        b: Annotated[int, Field(description="the second")],
        c: Annotated[int, "the third"] = None,  # type: ignore[assignment]
        d: int = 0,
    ):
        """Do.

        Args:
            a: not this
            d: the fourth
        """

    descriptions = {name: schema.get("description") for name, schema in properties(fn).items()}
    assert descriptions == {"a": "the first", "b": "the second", "c": "the third", "d": "the fourth"}
    assert properties(fn)["c"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]


def test_a_field_as_default_has_limits_and_a_default():
    no_tags: list[str] = Field(default_factory=list)

    def fn(limit: int = Field(default=5, ge=1, description="how many"), tags: list[str] = no_tags):
        return limit, tags

    assert properties(fn)["limit"] == {"type": "integer", "minimum": 1, "description": "how many", "default": 5}
    assert call(fn, {}) == (5, [])
    assert call(fn, {"limit": 2}) == (2, [])


def test_a_required_field_as_default_is_required():
    def fn(limit: int = Field(ge=1), name: Annotated[str, Field(default="x")] = ...):  # type: ignore[assignment]
        return limit

    assert read(fn).parameters["required"] == ["limit"]


@pytest.mark.integration
def test_plain_functions_are_read_without_pydantic():
    program = (
        "import sys\n"
        "from ferrule.kinds.function.tools import tool_of\n"
        "def f(a: str, b: int | None = None) -> dict[str, int]:\n    'Do.\\n\\n    Args:\\n        a: x\\n    '\n"
        "tool_of(f)\n"
        "print([m for m in ('pydantic', 'docstring_parser') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
