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
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import GuardedClient, shown_url
from ferrule.sources.loaded import digest
from ferrule.sources.yaml_text import read_documents

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
    """Where it was fetched from: relative servers start there."""
    digest: str = ""

    @property
    def version(self) -> str:
        return str(self.value.get("openapi") or self.value.get("swagger") or "")

    @property
    def is_2(self) -> bool:
        return self.version.startswith("2")

    def mapping(self, *keys: str) -> dict[str, Any]:
        """The mapping under these keys; empty when there is none."""
        found: Any = self.value
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    def resolve(self, value: Any) -> dict[str, Any]:
        """The value, or what its `$ref` leads to; empty when that is nothing."""
        for _ in range(MAX_REF_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value if isinstance(value, dict) else {}
            value = self.at(value["$ref"])
        return {}

    def at(self, ref: str) -> Any:
        """What a reference points to; None when that is nothing."""
        if not ref.startswith("#"):
            hint = "put all of it into one document, as `redocly bundle` does"
            raise self.error(f"the reference {ref!r} leads to another file", hint)
        found: Any = self.value
        for part in ref[1:].split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                found = found.get(part) if isinstance(found, dict) else None
        return found

    def error(self, message: str, hint: str | None = None) -> LoadError:
        return _error(self.origin, message, hint=hint)


def read_document(source: str | Path, guard: AddressGuard) -> OpenApiDocument:
    """The document at a path or a URL, or in a text; LoadError when it is none."""
    if isinstance(source, str) and is_url(source):
        return document_of(fetch(source, guard), shown_url(source), source)
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return document_of(source.encode("utf-8", "replace"), "<text>")
    return document_of(_read(Path(source)), str(source))


def mappings_in(said: Any) -> list[dict[str, Any]]:
    """The mappings of a list; none when it is no list."""
    return [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []


def texts_in(said: Any) -> list[str]:
    """The texts of a list, each once; none when it is no list."""
    return list(dict.fromkeys(each for each in said if isinstance(each, str))) if isinstance(said, list) else []


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def document_of(content: bytes, origin: str, url: str = "") -> OpenApiDocument:
    """The document that some bytes are."""
    if len(content) > MAX_SIZE:
        raise _error(origin, f"the document is larger than {MAX_SIZE:,} bytes")
    document = OpenApiDocument(value=_parse(content, origin), origin=origin, url=url, digest=digest(content))
    if not document.version.startswith(("2.", "3.")):
        raise document.error(
            "this is no OpenAPI document of version 2 or 3", "it begins with openapi: 3.… or swagger: '2.0'"
        )
    return document


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SIZE + 1)
    except OSError as error:
        raise LoadError(f"the file cannot be read: {error.strerror or error}", path=path) from None


def fetch(url: str, guard: AddressGuard, timeout: float = FETCH_TIMEOUT) -> bytes:
    """What stands at a URL; LoadError when it cannot be had."""
    # In a thread of its own, so that it works whether or not the caller's thread runs an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_get(url, guard, timeout))).result()


async def _get(url: str, guard: AddressGuard, timeout: float) -> bytes:
    client, what = GuardedClient(guard, max_response=MAX_SIZE), f"GET {shown_url(url)}"
    try:
        response = await client.send("GET", url, what=what, headers={}, timeout=timeout)
    except CallError as error:
        raise _error(shown_url(url), f"the document cannot be fetched: {error}") from error
    finally:
        await client.aclose()
    if response.status_code != 200:
        raise _error(shown_url(url), f"the server answered with status {response.status_code}")
    return response.content


def _parse(content: bytes, origin: str) -> dict[str, Any]:
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        try:
            value = json.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise _error(origin, f"not JSON: {error}", line=getattr(error, "lineno", None)) from None
    else:
        try:
            value = read_documents(content, Path(origin), max_values=MAX_VALUES)[0].value
        except LoadError as error:
            raise _error(origin, error.message, line=error.line, hint=error.hint) from None
    if not isinstance(value, dict):
        raise _error(origin, "this is no OpenAPI document: it is not a mapping")
    return value


def _error(origin: str, message: str, *, line: int | None = None, hint: str | None = None) -> LoadError:
    if "://" in origin:  # no path: it would lose one of its slashes
        return LoadError(f"{origin}: {message}", hint=hint)
    return LoadError(message, path=Path(origin), line=line, hint=hint)
