"""What every framework's tools have in common here: the description of a tool, its results and its errors."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ferrule.core.call import ValidationError
from ferrule.core.content import Audio, Content, Image, Resource
from ferrule.core.spec import JsonSchema
from ferrule.errors import InvalidArguments
from ferrule.kinds.function.decorator import ToolOptions
from ferrule.process.function_reference import ObjectFunction

_KEYWORDS_WITH_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """All that is needed to make a tool of Ferrule from a tool of another framework."""

    name: str
    description: str
    parameters: JsonSchema
    output: JsonSchema | None
    options: ToolOptions
    call: ObjectFunction
    """Calls the tool as its framework would."""
    source_function: Callable[..., Any] | type
    """The function or class that implements the tool."""


def remove_titles(schema: Mapping[str, Any]) -> JsonSchema:
    """Remove the titles that pydantic derives from names: they cost tokens and tell a model nothing."""
    result: JsonSchema = {}
    for keyword, value in schema.items():
        if keyword in _KEYWORDS_WITH_NAMED_SCHEMAS and isinstance(value, Mapping):
            result[keyword] = {name: _remove_titles_if_schema(each) for name, each in value.items()}
        elif isinstance(value, Mapping) and keyword not in ("default", "const"):
            result[keyword] = remove_titles(value)
        elif isinstance(value, list) and keyword not in ("default", "enum", "examples", "required"):
            result[keyword] = [_remove_titles_if_schema(each) for each in value]
        elif keyword != "title":
            result[keyword] = value
    return result


def _remove_titles_if_schema(value: Any) -> Any:
    return remove_titles(value) if isinstance(value, Mapping) else value


def convert_validation_error(error: Any) -> InvalidArguments:
    """Convert a pydantic `ValidationError` to `InvalidArguments`, without the values: a value may be secret."""
    errors = [
        ValidationError(
            path=".".join(map(str, detail["loc"])),
            message=f"{detail['msg']}.",
            expected=detail["type"],
            received=None,
            code=detail["type"],
        )
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return InvalidArguments(" ".join(map(str, errors)), [each.to_dict() for each in errors])


# Images, sounds and files that other frameworks write as base64 or as URLs


def make_part_from_bytes(data: bytes, mime_type: str) -> Content:
    if mime_type.startswith("image/"):
        return Image(data=data, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return Audio(data=data, mime_type=mime_type)
    return Resource(uri=f"data:{mime_type}", data=data, mime_type=mime_type)


def make_part_from_base64(text: str, mime_type: str) -> Content | None:
    """Return the part for bytes in base64; None when the text is not base64."""
    try:
        return make_part_from_bytes(base64.b64decode(text, validate=True), mime_type)
    except binascii.Error:
        return None


def make_part_from_url(url: str, mime_type: str | None = None) -> Content:
    """Return the part for a URL, which may contain the data itself (`data:image/png;base64,…`)."""
    head, comma, body = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        part = make_part_from_base64(body, head.removeprefix("data:").removesuffix(";base64") or "text/plain")
        if part is not None:
            return part
    return Resource(uri=url, mime_type=mime_type)


# Sync tools with an async interface. Frameworks await a sync function by running it in a thread, which cannot be ended:
# a call that timed out would continue in it. Here nothing else runs on the event loop, so the function can run in the
# thread that awaits it, in a worker process that can be killed.


class SameThreadExecutor(ThreadPoolExecutor):
    """Runs a function immediately, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with _without_running_loop():
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
        return future


@contextmanager
def _without_running_loop() -> Iterator[None]:
    """Behave like a thread without an event loop, where `asyncio.run` may be called."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def run_in_this_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; what it would run in other threads runs in this one."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(SameThreadExecutor())
        return runner.run(coroutine)
