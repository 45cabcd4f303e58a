"""Finding tools by text, by tags, by requirements and by category."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ferrule.catalog.registry import RegistrySnapshot, ToolRegistry
from ferrule.catalog.search.ranking import ActionDocument, TermIndex, make_documents
from ferrule.catalog.search.terms import extract_terms, remove_case_and_punctuation, split_jobs, translate_terms
from ferrule.catalog.search.vectors import (
    ENCODER,
    VectorStorage,
    VectorTable,
    document_digest,
    has_encoder,
    pack_vector,
    shared_encoder,
    unpack_vector,
)
from ferrule.core.spec import Tool
from ferrule.errors import DuplicateTool, StoreError, error_text

if TYPE_CHECKING:
    from ferrule.catalog.search.vectors import Vector

_T = TypeVar("_T")

_MAX_PER_REQUIREMENT = 200
"""Documents examined for each requirement."""
_MAX_QUERY_LENGTH = 2_000
"""Characters; of a longer query only the beginning is used."""
_MAX_QUERY_TERMS = 50
_MIN_MATCHED_WEIGHT = 0.5
"""A tool meets a requirement if it has terms with at least this share of the requirement's weight."""

# Words and meaning together: the similarity of the vectors, plus the BM25 score by this weight. Both were measured:
# sums of ranks (reciprocal rank fusion) found fewer, because ranks do not tell a good match from the best of bad ones.
_WORDS_WEIGHT = 0.02
_MIN_SIMILARITY = 0.2
_MIN_SHARE_OF_BEST = 0.7
"""A tool that shares no word with the query must be at least so similar to it, and have this share of the highest
similarity: of a few tools, only those that fit are found."""
_BEST_ACTION_WEIGHT = 0.2
"""How much the best action of a tool counts for its other actions: jobs are often done with several of one server."""
_MIN_COVERAGE = 0.9
"""While fewer documents have a vector, those that have one are not compared with those that have none."""
_CANDIDATES = 250
"""Documents that are considered for each job."""
_FIRST = 10
"""Of the first so many actions, one is the best for each job of the query."""
_FIRST_OF_ONE_TOOL = 5
"""The same for three jobs and more, if the first so many would be actions of one tool."""

IsVisible: TypeAlias = Callable[[Tool, str | None], bool]
"""Whether a search may find this action of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A tool that matches a query."""

    tool: Tool
    score: float
    """How well it matches; comparable only within one search."""
    actions: tuple[str, ...]
    """Its matching actions, best first."""
    matched: tuple[str, ...]
    """The terms of the query that the best action has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionHit:
    """An action that matches a query."""

    tool: Tool
    action: str
    score: float


class SearchIndex:
    """An index of enabled tools. Tools are added and removed one by one; it is never rebuilt."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._postings = TermIndex()
        self._numbers = count()
        self._documents: dict[tuple[str, str], tuple[Tool, list[ActionDocument]]] = {}
        self._by_name: dict[str, dict[ActionDocument, None]] = {}
        self._by_tag: dict[str, dict[Tool, None]] = {}
        self._vectors = VectorTable()
        for tool in tools:
            self.add(tool)

    def __len__(self) -> int:
        return len(self._documents)

    # Changing

    def add(self, tool: Tool) -> None:
        """Add a tool that is new in its source."""
        key = (tool.id, tool.source)
        if key in self._documents:
            raise DuplicateTool(
                f"Tool {tool.id!r} of source {tool.source!r} is already in the index. Use replace to change it."
            )
        documents = make_documents(tool, self._numbers)
        self._documents[key] = (tool, documents)
        for document in documents:
            self._postings.add(document)
            for name in document.names:
                self._by_name.setdefault(name, {})[document] = None
        if documents:
            for tag in tool.spec.tags:
                self._by_tag.setdefault(remove_case_and_punctuation(tag), {})[tool] = None

    def remove(self, tool_id: str, source: str) -> bool:
        """Remove the tool of a source with this id; False when there is none."""
        entry = self._documents.pop((tool_id, source), None)
        if entry is None:
            return False
        tool, documents = entry
        for document in documents:
            self._postings.remove(document)
            self._vectors.discard(document.number)
            for name in document.names:
                _discard_value(self._by_name, name, document)
        for tag in {remove_case_and_punctuation(tag) for tag in tool.spec.tags} if documents else ():
            _discard_value(self._by_tag, tag, tool)
        return True

    def replace(self, tool: Tool) -> None:
        """Replace the tool with the same id and source, or add it."""
        self.remove(tool.id, tool.source)
        self.add(tool)

    # Vectors

    def documents_without_vector(self) -> list[ActionDocument]:
        if len(self._vectors) == len(self._postings):
            return []
        return [document for document in self._postings if document.number not in self._vectors]

    def set_vectors(self, vectors: Iterable[tuple[ActionDocument, Vector]]) -> None:
        """Set the vectors of documents; those of documents that were removed in the meantime are ignored."""
        for document, vector in vectors:
            if document.number in self._postings:
                self._vectors.set_row(document.number, vector)

    @property
    def has_vectors(self) -> bool:
        """Return whether nearly all documents have a vector."""
        return len(self._vectors) > 0 and len(self._vectors) >= _MIN_COVERAGE * len(self._postings)

    # Finding

    def list_queries(self, text: str) -> list[str]:
        """Return what a search for a text searches for: the text, and each of its jobs if it has several."""
        return list(dict.fromkeys([text, *split_jobs(text[:_MAX_QUERY_LENGTH], self._postings.begins_action)]))

    def search(
        self,
        text: str,
        limit: int = 10,
        *,
        vectors: Mapping[str, Vector] | None = None,
        is_visible: IsVisible | None = None,
    ) -> list[SearchHit]:
        """Return the tools that match a text best: first those with exactly this name, equals by source and id.

        With the `vectors` of `list_queries`, the meaning of the text counts too.
        """
        query, by_tool, scores = self._find(text, limit, vectors, is_visible, lambda document: document.tool)
        return [
            SearchHit(
                tool=documents[0].tool,
                score=scores.get(documents[0].number, 0.0),
                actions=tuple(document.action for document in documents if document.action is not None),
                matched=tuple(term for term in query if term in documents[0].weights),
            )
            for documents in by_tool
        ]

    def search_actions(
        self,
        text: str,
        limit: int = 10,
        *,
        vectors: Mapping[str, Vector] | None = None,
        is_visible: IsVisible | None = None,
    ) -> list[ActionHit]:
        """Return the actions that match a text best."""

        def has_action(tool: Tool, action: str | None) -> bool:
            return action is not None and (is_visible is None or is_visible(tool, action))

        _, groups, scores = self._find(text, limit, vectors, has_action, lambda document: document.number)
        return [
            ActionHit(tool=document.tool, action=document.action or "", score=scores.get(document.number, 0.0))
            for (document, *_) in groups
        ]

    def search_by_tags(self, tags: Sequence[str]) -> list[Tool]:
        """Return the tools that have any of the tags, those with most of them first."""
        counts = Counter(
            tool for tag in {remove_case_and_punctuation(tag) for tag in tags} for tool in self._by_tag.get(tag, ())
        )
        return sorted(counts, key=lambda tool: (-counts[tool], tool.priority, tool.id))

    def search_by_requirements(self, requirements: Sequence[str]) -> list[Tool]:
        """Return the tools whose names, tags, descriptions or actions meet any of the requirements; best first.

        A tool that meets more of them comes before one that matches a single one better.
        """
        counts: Counter[Tool] = Counter()
        scores: dict[Tool, float] = {}
        for requirement in requirements:
            for tool, score in self._find_tools_meeting(requirement).items():
                counts[tool] += 1
                scores[tool] = scores.get(tool, 0.0) + score
        return sorted(counts, key=lambda tool: (-counts[tool], -scores[tool], tool.priority, tool.id))

    def _find(
        self,
        text: str,
        limit: int,
        vectors: Mapping[str, Vector] | None,
        is_visible: IsVisible | None,
        group_of: Callable[[ActionDocument], Hashable],
    ) -> tuple[dict[str, float], list[list[ActionDocument]], dict[int, float]]:
        """Return the terms of a text, the documents of the best groups, and the scores of documents."""
        if limit < 1:
            return {}, [], {}
        texts = list(vectors or self.list_queries(text))
        queries = [
            self._postings.weigh(_query_terms(each), translate_terms(each[:_MAX_QUERY_LENGTH])[:_MAX_QUERY_TERMS])
            for each in texts
        ]
        named = sorted(self._by_name.get(remove_case_and_punctuation(text), ()), key=lambda document: document.order)
        count = max(limit, _FIRST * len(texts))
        while True:
            by_query = self._score(queries, count, list(vectors.values()) if vectors else [])
            scores = self._join(by_query)
            documents = [*named, *self._postings.best_documents(scores, count)]
            visible = [each for each in documents if is_visible is None or is_visible(each.tool, each.action)]
            groups: dict[Hashable, dict[ActionDocument, None]] = {}
            for document in _place_best_of_each(visible, by_query, len(texts)):
                groups.setdefault(group_of(document), {})[document] = None
            if len(groups) >= limit or count > len(scores):
                return queries[0], [list(group) for group in groups.values()][:limit], scores
            count *= 8  # many of the best documents are actions of one tool, or not visible

    def _score(
        self, queries: Sequence[Mapping[str, float]], limit: int, vectors: Sequence[Vector]
    ) -> dict[int, list[float]]:
        """Return how well documents match each of the queries."""
        by_meaning = bool(vectors) and self.has_vectors
        limit = max(limit, _CANDIDATES) if by_meaning else limit
        by_words = [self._postings.score(query, limit) for query in queries]
        numbers = set[int]().union(*by_words)
        if not by_meaning:
            return {number: [scores.get(number, 0.0) for scores in by_words] for number in numbers}
        similar = self._vectors.compare(vectors, _MIN_SIMILARITY, _MIN_SHARE_OF_BEST, limit, numbers)
        # A new document without a vector is neither like the query nor unlike it.
        unknown = [_MIN_SIMILARITY] * len(queries)
        return {
            number: [
                similarity + _WORDS_WEIGHT * scores.get(number, 0.0)
                for similarity, scores in zip(similar.get(number, unknown), by_words, strict=True)
            ]
            for number in numbers | similar.keys()
        }

    def _join(self, by_query: Mapping[int, Sequence[float]]) -> dict[int, float]:
        """Return one score for each document: what fits one job very well is as good as what fits all a little.

        The scores for a job that fits no document well count more, by the root of its best score: each job has its
        place among the first.
        """
        highest = [max(column) for column in zip(*by_query.values(), strict=True)]
        factors = [sqrt(highest[0] / value) if value > 0 else 0.0 for value in highest]
        scores: dict[int, float] = {}
        for number, values in by_query.items():
            weights = [value * factor for value, factor in zip(values, factors, strict=True)]
            scores[number] = (max(weights) + sum(weights) / len(weights)) / 2
        best: dict[Tool, float] = {}
        for number, score in scores.items():
            tool = self._postings[number].tool
            best[tool] = max(score, best.get(tool, 0.0))
        return {
            number: (score + _BEST_ACTION_WEIGHT * best[self._postings[number].tool]) / (1 + _BEST_ACTION_WEIGHT)
            for number, score in scores.items()
        }

    def _find_tools_meeting(self, requirement: str) -> dict[Tool, float]:
        query = self._postings.weigh(_query_terms(requirement))
        total = sum(query.values())
        scores = self._postings.score(query, _MAX_PER_REQUIREMENT)
        best: dict[Tool, float] = {}
        for document in self._postings.best_documents(scores, _MAX_PER_REQUIREMENT):
            matched = sum(weight for term, weight in query.items() if term in document.weights)
            if matched >= total * _MIN_MATCHED_WEIGHT:
                best.setdefault(document.tool, scores[document.number])
        return best


def _place_best_of_each(
    documents: Sequence[ActionDocument], by_query: Mapping[int, Sequence[float]], count: int
) -> list[ActionDocument]:
    """Return the documents in their order, but with the best one for each job among the first."""
    if count == 1 or not documents:
        return list(documents)
    nothing = [0.0] * count
    best = {max(documents, key=lambda each: by_query.get(each.number, nothing)[job]) for job in range(1, count)}
    is_one_tool = count > 3 and len({document.tool for document in documents[:_FIRST_OF_ONE_TOOL]}) == 1
    free = max(0, (_FIRST_OF_ONE_TOOL if is_one_tool else _FIRST) - len(best))
    first = best.union([document for document in documents if document not in best][:free])
    return sorted(documents, key=lambda document: document not in first)


def _query_terms(query: str) -> list[str]:
    return list(dict.fromkeys(extract_terms(query[:_MAX_QUERY_LENGTH])))[:_MAX_QUERY_TERMS]


def _discard_value(index: dict[str, dict[_T, None]], key: str, value: _T) -> None:
    values = index[key]
    del values[value]
    if not values:
        del index[key]


class CategoryIndex:
    """The callable tools of a registry by category and subcategory, by descending priority."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def tools(self, category: str, subcategory: str | None = None) -> list[Tool]:
        """Return the tools of a category, or only of one of its subcategories."""
        tools = [tool for tool in self._tools_by_priority() if str(tool.spec.category) == str(category)]
        return [tool for tool in tools if subcategory in (None, tool.spec.subcategory)]

    def tree(self, condition: Callable[[Tool], bool]) -> dict[str, dict[str, list[str]]]:
        """Return the ids of the tools that meet a condition, by category and subcategory."""
        tree: dict[str, dict[str, list[str]]] = {}
        tools = filter(condition, self._tools_by_priority())
        for tool in sorted(tools, key=lambda tool: (str(tool.spec.category), tool.spec.subcategory)):
            tree.setdefault(str(tool.spec.category), {}).setdefault(tool.spec.subcategory, []).append(tool.id)
        return tree

    def _tools_by_priority(self) -> list[Tool]:
        return sorted(self._registry.snapshot().callable_tools, key=lambda tool: (-tool.spec.priority, tool.id))


# The index of a registry follows it, and keeps the vectors of its tools in a storage.

logger = logging.getLogger("ferrule.search")

PREPARATION_TIMEOUT = 15.0
"""Seconds that a search waits for the vectors of new tools. Encoding continues in the background after that."""
_DOCUMENTS_PER_SLICE = 16
"""Encoded at a time, some 50 ms: a query waits no longer for its turn."""
_MANY_DOCUMENTS = 256
"""Encoding more is logged, because it takes seconds."""
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
            if await asyncio.to_thread(self._find_documents_to_encode):
                task = self._encoding
                if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
                    task = self._encoding = asyncio.create_task(self._encode_all(), name="ferrule-tool-vectors")
                await asyncio.wait({task}, timeout=PREPARATION_TIMEOUT)
            if text not in self._queries:
                with self._lock:
                    texts = self._update_index(None)[0].list_queries(text)
                vectors = await asyncio.to_thread(lambda: shared_encoder().encode_queries(texts))
                self._queries[text] = dict(zip(texts, vectors, strict=True))
                if len(self._queries) > _MAX_QUERIES:
                    self._queries.popitem(last=False)
        except Exception as error:  # a broken installation; words still work
            self._report_encoder_failure(error)

    async def aclose(self) -> None:
        """Stop encoding. What is encoded already is in the storage."""
        if self._encoding is not None and not self._encoding.done():
            self._encoding.cancel()
            await asyncio.wait({self._encoding})

    async def _encode_all(self) -> None:
        """Give every document its vector, from the storage or the encoder, until none lacks it."""
        try:
            while by_digest := await asyncio.to_thread(self._find_documents_to_encode):
                stored = await self._load_vectors(by_digest)
                missing = [digest for digest in by_digest if digest not in stored]
                if len(missing) > _MANY_DOCUMENTS:
                    logger.info("actions=<%d> | encoding their descriptions, to find them by meaning", len(missing))
                for start in range(0, len(missing), _DOCUMENTS_PER_SLICE):
                    part = {digest: by_digest[digest] for digest in missing[start : start + _DOCUMENTS_PER_SLICE]}
                    packed = await asyncio.to_thread(_encode_documents, part)
                    await asyncio.to_thread(self._set_vectors, packed, part)
                    await self._save_vectors(packed)
        except Exception as error:
            self._report_encoder_failure(error)

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

    def _find_documents_to_encode(self) -> dict[str, list[ActionDocument]]:
        """Return the documents without a vector by their digests."""
        with self._lock:
            documents = self._update_index(None)[0].documents_without_vector()
        groups: dict[str, list[ActionDocument]] = {}
        for document in documents:
            groups.setdefault(document_digest(document), []).append(document)
        return groups

    def _report_encoder_failure(self, error: Exception) -> None:
        if self._encoder_failed:
            return
        self._encoder_failed = True
        logger.warning("tools are found by their words alone, because the encoder failed: %s", error_text(error))


def _encode_documents(by_digest: Mapping[str, list[ActionDocument]]) -> dict[str, bytes]:
    vectors = shared_encoder().encode_documents([documents[0] for documents in by_digest.values()])
    return {digest: pack_vector(vector) for digest, vector in zip(by_digest, vectors, strict=True)}
