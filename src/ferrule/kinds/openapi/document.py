"""An OpenAPI document: 2.0, 3.0 or 3.1, JSON or YAML, from a file, a URL or a text.

Only references within the document are followed. One to another file is an error: bundle the document first.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ferrule.errors import CallError, LoadError
from ferrule.http.client import GuardedClient, HttpResponse, format_url
from ferrule.http.guard import AddressGuard
from ferrule.kinds.source import digest, read_limited_file
from ferrule.kinds.yaml.reader import read_documents

MAX_SIZE: Final = 20_000_000
MAX_VALUES: Final = 600_000
MAX_REF_HOPS: Final = 32
FETCH_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApiDocument:
    value: dict[str, Any]
    origin: str
    """For messages: the file, or the URL without its query."""
    url: str = ""
    """The URL it was fetched from: relative server URLs are resolved against it."""
    digest: str = ""

    @property
    def version(self) -> str:
        return str(self.value.get("openapi") or self.value.get("swagger") or "")

    @property
    def is_version_2(self) -> bool:
        return self.version.startswith("2")

    def mapping(self, *keys: str) -> dict[str, Any]:
        """Return the mapping under these keys; empty when it does not exist."""
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    def resolve(self, value: Any) -> dict[str, Any]:
        """Return the mapping, or the mapping its `$ref` refers to; empty when it does not exist."""
        for _ in range(MAX_REF_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value if isinstance(value, dict) else {}
            value = self.at(value["$ref"])
        return {}

    def at(self, ref: str) -> Any:
        """Return the value a reference refers to; None when it does not exist."""
        if not ref.startswith("#"):
            hint = "bundle everything into one document, for example with `redocly bundle`"
            raise self.error(f"the reference {ref!r} refers to another file", hint)
        value: Any = self.value
        for part in ref[1:].split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    def error(self, message: str, hint: str | None = None) -> LoadError:
        return _make_load_error(self.origin, message, hint=hint)


def read_document(source: str | Path, guard: AddressGuard) -> OpenApiDocument:
    """Read the document at a path or a URL, or in a text. Raises LoadError when it is not an OpenAPI document."""
    if isinstance(source, str) and is_url(source):
        return parse_document(fetch_content(source, guard), format_url(source), source)
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return parse_document(source.encode("utf-8", "replace"), "<text>")
    return parse_document(read_limited_file(Path(source), MAX_SIZE, may_be_pipe=True), str(source))


def select_mappings(value: Any) -> list[dict[str, Any]]:
    """Select the mappings of a list. Return an empty list for another value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def select_texts(value: Any) -> list[str]:
    """Select the texts of a list without duplicates. Return an empty list for another value."""
    return list(dict.fromkeys(each for each in value if isinstance(each, str))) if isinstance(value, list) else []


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def parse_document(content: bytes, origin: str, url: str = "") -> OpenApiDocument:
    """Parse a document. Raises LoadError when it is not an OpenAPI document."""
    if len(content) > MAX_SIZE:
        raise _make_load_error(origin, f"the document is larger than {MAX_SIZE:,} bytes")
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        try:
            value = json.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise _make_load_error(origin, f"not JSON: {error}", line=getattr(error, "lineno", None)) from None
    else:
        try:
            value = read_documents(content, Path(origin), max_values=MAX_VALUES)[0].value
        except LoadError as error:
            raise _make_load_error(origin, error.message, line=error.line, hint=error.hint) from None
    if not isinstance(value, dict):
        raise _make_load_error(origin, "this is not an OpenAPI document: it is not a mapping")
    document = OpenApiDocument(value=value, origin=origin, url=url, digest=digest(content))
    if not document.version.startswith(("2.", "3.")):
        raise document.error(
            "this is not an OpenAPI document of version 2 or 3", "begin it with openapi: 3.… or swagger: '2.0'"
        )
    return document


def fetch_content(url: str, guard: AddressGuard, timeout: float = FETCH_TIMEOUT) -> bytes:
    """Fetch the content of a URL. Raises LoadError when it cannot be fetched."""

    async def fetch() -> HttpResponse:
        client = GuardedClient(guard, max_response=MAX_SIZE)
        try:
            return await client.send("GET", url, what=f"GET {format_url(url)}", headers={}, timeout=timeout)
        finally:
            await client.aclose()

    # In another thread, so that it works whether or not the caller's thread runs an event loop.
    with ThreadPoolExecutor(1) as thread:
        try:
            response = thread.submit(lambda: asyncio.run(fetch())).result()
        except CallError as error:
            raise _make_load_error(format_url(url), f"the document cannot be fetched: {error}") from error
    if response.status_code != 200:
        raise _make_load_error(format_url(url), f"the server answered with status {response.status_code}")
    return response.content


def _make_load_error(origin: str, message: str, *, line: int | None = None, hint: str | None = None) -> LoadError:
    if "://" in origin:  # as a Path it would lose one of its slashes
        return LoadError(f"{origin}: {message}", hint=hint)
    return LoadError(message, path=Path(origin), line=line, hint=hint)
