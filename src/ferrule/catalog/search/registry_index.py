"""The index of a registry's tools: it follows the registry, and keeps the vectors of the tools in a storage."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ferrule.catalog.registry import RegistrySnapshot, ToolRegistry
from ferrule.catalog.search.index import ActionHit, IsVisible, SearchHit, SearchIndex
from ferrule.catalog.search.ranking import ActionDocument
from ferrule.catalog.search.vectors import (
    ENCODER,
    VectorStorage,
    document_digest,
    has_encoder,
    pack_vector,
    shared_encoder,
    unpack_vector,
)
from ferrule.core.spec import Tool
from ferrule.errors import StoreError, error_text

if TYPE_CHECKING:
    from ferrule.catalog.search.vectors import Vector

logger = logging.getLogger("ferrule.search")

PREPARATION_TIMEOUT = 15.0
"""Seconds that a search waits for the vectors of new tools. Encoding continues in the background after that."""
_DOCUMENTS_PER_SLICE = 16
"""Encoded at a time, some 50 ms: a query waits no longer for its turn."""
_VECTORS_PER_TRANSACTION = 256
_MAX_QUERIES = 200
"""Whose vectors are cached."""


class RegistryIndex:
    """Searches the tools of a registry that can be called.

    The index follows the registry lazily: each search first applies what has changed since the last one. Safe to use
    from several threads.

    Searching by meaning takes two steps, since encoding takes longer than an event loop should be blocked: after
    `await prepare(text)`, a search for this text uses its meaning and its words, without it only its words. Vectors
    stay in the `storage`: only new and changed tools are encoded.
    """

    def __init__(self, registry: ToolRegistry, storage: VectorStorage | None = None) -> None:
        self.registry = registry
        self._storage = storage
        self._index = SearchIndex()
        self._snapshot: RegistrySnapshot | None = None
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, dict[str, Vector]] = OrderedDict()
        self._encoding: asyncio.Task[None] | None = None
        self._encoder_failed = False

    def search(self, text: str, limit: int = 10, *, is_visible: IsVisible | None = None) -> list[SearchHit]:
        """See `SearchIndex.search`; hidden actions are left out."""
        with self._lock:
            index, visible = self._update_index(is_visible)
            return index.search(text, limit, vectors=self._queries.get(text), is_visible=visible)

    def search_actions(self, text: str, limit: int = 10, *, is_visible: IsVisible | None = None) -> list[ActionHit]:
        """See `SearchIndex.search_actions`; hidden actions are left out."""
        with self._lock:
            index, visible = self._update_index(is_visible)
            return index.search_actions(text, limit, vectors=self._queries.get(text), is_visible=visible)

    def search_by_tags(self, tags: Sequence[str]) -> list[Tool]:
        with self._lock:
            index, visible = self._update_index(None)
            return [tool for tool in index.search_by_tags(tags) if visible(tool, None)]

    def search_by_requirements(self, requirements: Sequence[str]) -> list[Tool]:
        with self._lock:
            index, visible = self._update_index(None)
            return [tool for tool in index.search_by_requirements(requirements) if visible(tool, None)]

    def _update_index(self, is_visible: IsVisible | None) -> tuple[SearchIndex, IsVisible]:
        """Return the index of the current tools, and which of them may be found."""
        if self._snapshot is None or self._snapshot.version != self.registry.version:
            snapshot = self.registry.snapshot()
            self._apply_changes(self._snapshot, snapshot)
            self._snapshot = snapshot
        unavailable = self._snapshot.unavailable
        if is_visible is None:
            return self._index, lambda tool, _: tool not in unavailable
        return self._index, lambda tool, action: tool not in unavailable and is_visible(tool, action)

    def _apply_changes(self, before: RegistrySnapshot | None, after: RegistrySnapshot) -> None:
        # The registry keeps the candidates of an id in one tuple, which is the same object until they change.
        old = before.by_id if before is not None else {}
        for tool_id in old.keys() - after.by_id.keys():
            for tool in old[tool_id]:
                self._index.remove(tool.id, tool.source)
        for tool_id, tools in after.by_id.items():
            old_tools = old.get(tool_id, ())
            if tools is old_tools:
                continue
            for tool in old_tools:
                if tool not in tools:
                    self._index.remove(tool.id, tool.source)
            for tool in tools:
                if tool not in old_tools:
                    self._index.add(tool)

    # Meaning

    def uses_vectors(self, text: str) -> bool:
        """Return whether a search for this text uses its meaning too, or only its words."""
        return text in self._queries and self._index.has_vectors

    async def prepare(self, text: str) -> None:
        """Let searches for this text use its meaning too. Without the extra `semantic` it does nothing.

        It waits until all tools have their vectors, but not longer than `PREPARATION_TIMEOUT`.
        """
        if self._encoder_failed or not text.strip() or not has_encoder():
            return
        try:
            if await asyncio.to_thread(self._list_documents_to_encode):
                await asyncio.wait({self._start_encoding()}, timeout=PREPARATION_TIMEOUT)
            if text not in self._queries:
                self._queries[text] = await asyncio.to_thread(self._encode_query, text)
                if len(self._queries) > _MAX_QUERIES:
                    self._queries.popitem(last=False)
        except Exception as error:  # a broken installation; words still work
            self._report_encoder_failure(error)

    def _encode_query(self, text: str) -> dict[str, Vector]:
        """Return the vectors of a text and of its jobs."""
        with self._lock:
            texts = self._update_index(None)[0].list_queries(text)
        return dict(zip(texts, shared_encoder().encode_queries(texts), strict=True))

    async def aclose(self) -> None:
        """Stop encoding. What is encoded already is in the storage."""
        if self._encoding is not None and not self._encoding.done():
            self._encoding.cancel()
            await asyncio.wait({self._encoding})

    def _start_encoding(self) -> asyncio.Task[None]:
        task = self._encoding
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._encoding = asyncio.create_task(self._encode_all(), name="ferrule-tool-vectors")
        return task

    async def _encode_all(self) -> None:
        """Give every document its vector, from the storage or the encoder, until none lacks it."""
        try:
            while documents := await asyncio.to_thread(self._list_documents_to_encode):
                by_digest = await asyncio.to_thread(_group_by_digest, documents)
                stored = await self._load_vectors(by_digest)
                missing = [digest for digest in by_digest if digest not in stored]
                if len(missing) > _VECTORS_PER_TRANSACTION:
                    logger.info("actions=<%d> | encoding their descriptions, to find them by meaning", len(missing))
                await self._encode_missing(missing, by_digest)
        except Exception as error:
            self._report_encoder_failure(error)

    async def _encode_missing(self, digests: Sequence[str], by_digest: Mapping[str, list[ActionDocument]]) -> None:
        unsaved: dict[str, bytes] = {}
        try:
            for start in range(0, len(digests), _DOCUMENTS_PER_SLICE):
                part = {digest: by_digest[digest] for digest in digests[start : start + _DOCUMENTS_PER_SLICE]}
                packed = await asyncio.to_thread(_encode_documents, part)
                await asyncio.to_thread(self._set_vectors, packed, part)
                unsaved |= packed
                if len(unsaved) >= _VECTORS_PER_TRANSACTION:
                    await self._save_vectors(unsaved)
                    unsaved = {}
        finally:
            if unsaved:
                await self._save_vectors(unsaved)

    async def _load_vectors(self, by_digest: Mapping[str, list[ActionDocument]]) -> set[str]:
        """Set the vectors that are in the storage; returns their digests, without those that are damaged."""
        if self._storage is None:
            return set()
        try:
            packed = await self._storage.load(ENCODER, list(by_digest))
        except StoreError as error:
            logger.warning("the vectors of tools cannot be read, and are made again: %s", error_text(error))
            return set()
        return await asyncio.to_thread(self._set_vectors, packed, by_digest)

    async def _save_vectors(self, packed: Mapping[str, bytes]) -> None:
        if self._storage is None:
            return
        try:
            await self._storage.save(ENCODER, packed)
        except StoreError as error:
            logger.warning("the vectors of tools cannot be saved, and are made again next time: %s", error_text(error))

    def _set_vectors(self, packed: Mapping[str, bytes], by_digest: Mapping[str, list[ActionDocument]]) -> set[str]:
        vectors = {d: vector for d, data in packed.items() if (vector := unpack_vector(data)) is not None}
        with self._lock:
            self._index.set_vectors((document, vectors[d]) for d in vectors for document in by_digest[d])
        return set(vectors)

    def _list_documents_to_encode(self) -> list[ActionDocument]:
        with self._lock:
            return self._update_index(None)[0].documents_without_vector()

    def _report_encoder_failure(self, error: Exception) -> None:
        if self._encoder_failed:
            return
        self._encoder_failed = True
        logger.warning("tools are found by their words alone, because the encoder failed: %s", error_text(error))


def _group_by_digest(documents: Sequence[ActionDocument]) -> dict[str, list[ActionDocument]]:
    groups: dict[str, list[ActionDocument]] = {}
    for document in documents:
        groups.setdefault(document_digest(document), []).append(document)
    return groups


def _encode_documents(by_digest: Mapping[str, list[ActionDocument]]) -> dict[str, bytes]:
    vectors = shared_encoder().encode_documents([documents[0] for documents in by_digest.values()])
    return {digest: pack_vector(vector) for digest, vector in zip(by_digest, vectors, strict=True)}
