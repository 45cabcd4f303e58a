"""The OpenAPI documents a project names: each is a tool, loaded at start and again when its file changes.

A document at a URL is fetched once and stored on disk: what it says then is what the user has accepted, because it
decides where requests and credentials are sent. `ferrule openapi update` fetches it again and shows what has changed.
With `check_hours`, a copy of that age is compared with the URL; a document that has changed is reported and not used. A
document that cannot be used is reported and does not affect others; a broken file keeps its last good tool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from ferrule.core.spec import Tool
from ferrule.errors import LoadError
from ferrule.http.client import format_url
from ferrule.http.guard import AddressGuard
from ferrule.kinds.openapi.document import OpenApiDocument, fetch_content, is_url, parse_document, read_document
from ferrule.kinds.openapi.operation import OpenApiTarget, Operation
from ferrule.kinds.openapi.tool import OpenApiEntry, make_tool_of_document
from ferrule.kinds.source import LoadedFile, LoadReport, WatchedFolder, combine_into_report, digest_file, load_or_report
from ferrule.store.location import atomic_write, user_cache_directory

logger = logging.getLogger("ferrule.kinds")

FETCH_TIMEOUT: Final = 10.0
"""Seconds to fetch a document: the start of an engine waits for it."""
MAX_SHOWN_CHANGES: Final = 5
RETRY_INTERVAL: Final = 30.0
"""Seconds until a document that could not be fetched is fetched again."""


class OpenApiDocuments:
    """The tools of the documents that a project names."""

    def __init__(
        self, entries: Sequence[OpenApiEntry], guard: AddressGuard, cache_directory: Path | None = None
    ) -> None:
        self._entries, self._guard = tuple(entries), guard
        self._cache_directory = cache_directory if cache_directory is not None else user_cache_directory("openapi")
        self._last_good: dict[int, LoadedFile] = {}
        self._failed: dict[int, tuple[LoadedFile, float]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(entry.source) for entry in self._entries if not is_url(entry.source))

    def watched_folders(self) -> Sequence[WatchedFolder]:
        return [WatchedFolder.of_file(file) for file in self.files]

    def load(self) -> LoadReport:
        """Load all tools as the documents are now. Documents are fetched: call this in a thread."""
        if not self._entries:
            return LoadReport()
        with ThreadPoolExecutor(min(len(self._entries), 8)) as threads:
            loaded = list(threads.map(self._load, range(len(self._entries))))
        report = combine_into_report((Path(e.source), each) for e, each in zip(self._entries, loaded, strict=True))
        return replace(report, files=self.files)

    def _load(self, number: int) -> LoadedFile:
        good = self._last_good.get(number)
        if good is not None and good.is_current:
            return good
        entry = self._entries[number]
        failed, failed_at = self._failed.get(number, (None, 0.0))
        if failed is not None and is_url(entry.source) and time.monotonic() - failed_at < RETRY_INTERVAL:
            return failed
        fresh = load_or_report(lambda _: self._read(entry), Path(entry.source))
        if fresh.errors:
            fresh = replace(fresh, tools=fresh.tools or (good.tools if good is not None else ()))
            self._failed[number] = (fresh, time.monotonic())
        else:
            self._last_good[number] = fresh
            self._failed.pop(number, None)
        return fresh

    def _read(self, entry: OpenApiEntry) -> LoadedFile:
        if is_url(entry.source):
            return self._read_url(entry)
        try:
            tool = make_tool_of_document(read_document(entry.source, self._guard), entry)
        except LoadError as error:
            return LoadedFile(errors=(error,))
        path = Path(entry.source)
        return LoadedFile(tools=(tool,), digests={path: digest_file(path)})

    # Documents at URLs

    def _read_url(self, entry: OpenApiEntry) -> LoadedFile:
        """Read the tool of the stored copy, and report a document that has changed since. Without a copy, fetch one."""
        copy, age = _read_cached_copy(self._copy_path(entry.source))
        try:
            if copy is None:
                update = self.fetch_update(entry)
                self.accept_update(entry, update)
                return LoadedFile(tools=(update.tool,))
            tool = make_tool_of_document(_parse(copy, entry.source), entry)
        except LoadError as error:
            return LoadedFile(errors=(error,))
        if entry.check_hours is None or age < entry.check_hours * 3600:
            return LoadedFile(tools=(tool,))
        try:
            update = self.fetch_update(entry)
        except LoadError as error:
            logger.warning("url=<%s> | not compared with its copy: %s", format_url(entry.source), error.message)
            return LoadedFile(tools=(tool,))
        if update.changes:
            listed, more = ", ".join(update.changes[:MAX_SHOWN_CHANGES]), len(update.changes) - MAX_SHOWN_CHANGES
            message = f"{listed}, and {more} more" if more > 0 else listed
            changed = LoadError(
                f"{format_url(entry.source)}: the document has changed since it was accepted ({message})",
                hint="the accepted copy is used; look at the changes and accept them with: ferrule openapi update",
            )
            return LoadedFile(tools=(tool,), errors=(changed,))
        self.accept_update(entry, update)
        return LoadedFile(tools=(tool,))

    def fetch_update(self, entry: OpenApiEntry) -> DocumentUpdate:
        """Fetch the document at a URL and compare it with the stored copy. Raises LoadError if it cannot be used."""
        content = fetch_content(entry.source, self._guard, FETCH_TIMEOUT)
        tool = make_tool_of_document(_parse(content, entry.source), entry)
        copy, _ = _read_cached_copy(self._copy_path(entry.source))
        changes: list[str] = []
        if copy is not None and copy != content:
            try:
                changes = describe_changes(make_tool_of_document(_parse(copy, entry.source), entry), tool)
            except LoadError as error:
                changes = [f"the stored copy cannot be used: {error.message}"]
        return DocumentUpdate(content=content, tool=tool, changes=tuple(changes), is_new=copy is None)

    def accept_update(self, entry: OpenApiEntry, update: DocumentUpdate) -> None:
        """Store a document, which is used from now on."""
        path = self._copy_path(entry.source)
        try:
            atomic_write(path, update.content)
        except OSError as error:
            logger.warning("path=<%s> | an OpenAPI document could not be stored: %s", path, error)

    def _copy_path(self, url: str) -> Path:
        return self._cache_directory / f"{sha256(url.encode()).hexdigest()[:32]}.openapi"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentUpdate:
    """A document that was fetched from its URL."""

    content: bytes
    tool: Tool
    changes: tuple[str, ...]
    """How it differs from the stored copy, one line each."""
    is_new: bool
    """There was no copy."""


def describe_changes(before: Tool, after: Tool) -> list[str]:
    """Describe how servers, credentials and operations of an API have changed, one line each."""
    assert isinstance(before.target, OpenApiTarget) and isinstance(after.target, OpenApiTarget)
    old, new = before.target.operations, after.target.operations
    servers = before.spec.metadata["servers"]
    lines = [f"new server {url}" for url in after.spec.metadata["servers"] if url not in servers]
    lines += [f"new operation {name} ({new[name].method} {new[name].path})" for name in new if name not in old]
    lines += [f"removed operation {name}" for name in old if name not in new]
    lines += [
        f"changed {what} of operation {name}"
        for name in new
        if name in old
        for what, read in _COMPARED_PARTS.items()
        if read(old[name]) != read(new[name])
    ]
    return lines or ["changed descriptions or schemas"]


_COMPARED_PARTS: Final[dict[str, Callable[[Operation], object]]] = {
    "request": lambda operation: (operation.method, operation.path, operation.arguments, operation.body),
    "server": lambda operation: operation.server,
    "credentials": lambda operation: operation.security,
}


def _parse(content: bytes, url: str) -> OpenApiDocument:
    return parse_document(content, format_url(url), url)


def _read_cached_copy(path: Path) -> tuple[bytes | None, float]:
    """Read a stored copy, if there is one, and return its age in seconds too."""
    try:
        return path.read_bytes(), max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None, 0.0
