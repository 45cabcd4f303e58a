"""Typed answers: the type that the answer of a run must have, its JSON Schema, and checking what a model wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.core.content import encode_json
from ferrule.core.model import ModelRequest
from ferrule.errors import SetupError, error_text

MAX_OUTPUT_ATTEMPTS: Final = 3
"""The run is stopped after this many answers that are not of the type."""
_WRAPPER: Final = "answer"
"""The property that holds an answer that is no object: the APIs of models enforce only schemas of objects."""
_MAX_PROBLEMS: Final = 10


class OutputType:
    """The type of an answer: a pydantic model, a dataclass, a TypedDict, or a type such as `int` or `list[str]`."""

    def __init__(self, output: Any) -> None:
        from pydantic import TypeAdapter  # only runs with a type need it
        from pydantic.errors import PydanticUserError

        self.name = getattr(output, "__name__", None) or str(output)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(output)
            schema = self._adapter.json_schema()
        except (PydanticUserError, TypeError, ValueError) as error:
            raise SetupError(
                f"The answer cannot be of the type {self.name!r}: {error_text(error).splitlines()[0]} "
                "Use a pydantic model, a dataclass, a TypedDict, or a plain type such as int or list[str]."
            ) from None
        self._is_text = output is str
        self._is_wrapped = schema.get("type") != "object"
        self.schema: dict[str, Any] = _close_objects(_wrap(schema) if self._is_wrapped else schema)

    @property
    def instruction(self) -> str:
        """What the model is told about the form of its answer."""
        if self._is_text:
            return ""
        return (
            "Your final answer must be one JSON value that follows this JSON Schema, without any other text:\n"
            + encode_json(self.schema).decode()
        )

    def parse(self, text: str) -> Any:
        """The value in an answer; ValueError, with all problems, if it is not of the type."""
        if self._is_text:
            return text
        problem = "it contains no JSON"
        for value in _find_json(text):
            for candidate in self._unwrap(value):
                try:
                    return self._adapter.validate_json(encode_json(candidate))
                except ValueError as error:
                    problem = _describe_problems(error)
        raise ValueError(problem)

    def format(self, value: Any) -> str:
        """The value as text: JSON, except that text stays as it is."""
        return value if isinstance(value, str) else self._adapter.dump_json(value).decode()

    def constrain(self, request: ModelRequest, *, is_retry: bool) -> ModelRequest:
        """The request; where only the answer is missing, one whose reply the model's API makes follow the schema.

        Not while there are tools to call: many servers that enforce a schema make no calls then.
        """
        has_tools = any(schema["function"]["name"] not in CONTROL_TOOLS for schema in request.tools)
        if self._is_text or (has_tools and not is_retry):
            return request
        return replace(request, tools=(), answer_schema=self.schema)

    def _unwrap(self, value: Any) -> Iterator[Any]:
        if self._is_wrapped and isinstance(value, dict) and set(value) == {_WRAPPER}:
            yield value[_WRAPPER]
        else:
            yield value


def _wrap(schema: Mapping[str, Any]) -> dict[str, Any]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    return {"type": "object", "properties": {_WRAPPER: inner}, "required": [_WRAPPER], **definitions}


def _close_objects(schema: Any) -> Any:
    """The schema with every object closed: the strict modes of APIs require it."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {keyword: _close_objects(value) for keyword, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _find_json(text: str) -> Iterator[Any]:
    """The whole text as JSON, or else the JSON values in it, the first first."""
    text = text.strip()
    try:
        yield json.loads(text)
        return
    except ValueError:
        pass
    decoder, start = json.JSONDecoder(), 0
    while (start := min((at for at in (text.find("{", start), text.find("[", start)) if at >= 0), default=-1)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield value


def _describe_problems(error: ValueError) -> str:
    problems = getattr(error, "errors", None)
    if problems is None:
        return error_text(error)
    lines = []
    for problem in problems(include_url=False, include_input=False)[:_MAX_PROBLEMS]:
        where = ".".join(map(str, problem["loc"]))
        lines.append(f"{where}: {problem['msg']}" if where else str(problem["msg"]))
    return "; ".join(lines)
