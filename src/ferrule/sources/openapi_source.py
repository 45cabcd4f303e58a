"""The OpenAPI documents a project names: each is a tool, loaded at start and again when its file changes.

A document at a URL is kept on disk and fetched again when the copy is an hour old; when it cannot be fetched, the copy
is used. What cannot be used is reported and harms no other; a file that broke keeps its last good tool.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from ferrule.errors import LoadError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import shown_url
from ferrule.sources.kept_file import keep
from ferrule.sources.loaded import LoadedFile, LoadReport, digest_of, load_or_report, report_of
from ferrule.sources.openapi_document import OpenApiDocument, document_of, fetch, is_url, read_document
from ferrule.sources.openapi_tool import tool_of_document

logger = logging.getLogger("ferrule.sources")

MAX_AGE: Final = 3600.0
PATIENCE: Final = 10.0
"""Seconds a document may take to be fetched: whoever starts an engine waits for it."""
TRY_AGAIN_AFTER: Final = 30.0
"""Seconds until a document that could not be fetched is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApiEntry:
    """One document, and what is to become of it. All but `source` is as `read_openapi` takes it."""

    source: str
    """A path or a URL."""
    name: str | None = None
    server: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    operations: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    credentials: dict[str, str] = field(default_factory=dict)

    def under(self, folder: Path) -> OpenApiEntry:
        """With a path that starts at a folder."""
        return self if is_url(self.source) else replace(self, source=str(folder / Path(self.source).expanduser()))


class OpenApiDocuments:
    """The tools of some documents."""

    def __init__(
        self, entries: Sequence[OpenApiEntry], guard: AddressGuard, cache_directory: Path | None = None
    ) -> None:
        self._entries, self._guard = tuple(entries), guard
        self._cache = cache_directory if cache_directory is not None else _default_directory()
        self._good: dict[int, LoadedFile] = {}
        self._failed: dict[int, tuple[LoadedFile, float]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(entry.source) for entry in self._entries if not is_url(entry.source))

    def load(self) -> LoadReport:
        """All tools as the documents are now. Documents are fetched: call it in a thread."""
        if not self._entries:
            return LoadReport()
        with ThreadPoolExecutor(min(len(self._entries), 8)) as threads:
            loaded = list(threads.map(self._load, range(len(self._entries))))
        report = report_of((Path(e.source), each) for e, each in zip(self._entries, loaded, strict=True))
        return replace(report, files=self.files)

    def _load(self, number: int) -> LoadedFile:
        good = self._good.get(number)
        if good is not None and good.is_current:
            return good
        failed, when = self._failed.get(number, (None, 0.0))
        if failed is not None and is_url(self._entries[number].source) and time.monotonic() - when < TRY_AGAIN_AFTER:
            return failed
        fresh = load_or_report(lambda _: self._read(self._entries[number]), Path(self._entries[number].source))
        if fresh.errors:
            fresh = replace(fresh, tools=good.tools if good is not None else ())
            self._failed[number] = (fresh, time.monotonic())
        else:
            self._good[number] = fresh
            self._failed.pop(number, None)
        return fresh

    def _read(self, entry: OpenApiEntry) -> LoadedFile:
        try:
            at_url = is_url(entry.source)
            document = self._fetched(entry.source) if at_url else read_document(entry.source, self._guard)
            tool = tool_of_document(
                document,
                name=entry.name,
                server=entry.server,
                variables=entry.variables,
                operations=entry.operations,
                exclude=entry.exclude,
                credentials=entry.credentials,
            )
        except LoadError as error:
            return LoadedFile(errors=(error,))
        path = Path(entry.source)
        return LoadedFile(tools=(tool,), made_from={} if at_url else {path: digest_of(path)})

    # Documents at URLs

    def _fetched(self, url: str) -> OpenApiDocument:
        path = self._cache / f"{sha256(url.encode()).hexdigest()[:32]}.openapi"
        kept = _kept(path)
        if kept is not None and kept[1] < MAX_AGE:
            return document_of(kept[0], shown_url(url), url)
        try:
            content = fetch(url, self._guard, PATIENCE)
            document = document_of(content, shown_url(url), url)
        except LoadError as error:
            if kept is None:
                raise
            logger.warning("url=<%s>, age=<%.0f s> | the kept copy is used: %s", shown_url(url), kept[1], error.message)
            return document_of(kept[0], shown_url(url), url)
        _keep(path, content)
        return document


def _kept(path: Path) -> tuple[bytes, float] | None:
    """A copy and its age in seconds."""
    try:
        return path.read_bytes(), max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _keep(path: Path, content: bytes) -> None:
    try:
        keep(path, content)
    except OSError as error:
        logger.warning("path=<%s> | an OpenAPI document could not be kept: %s", path, error)


def _default_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule" / "openapi"
