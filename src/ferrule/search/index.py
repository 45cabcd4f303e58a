"""Finding tools by text, by tags, by requirements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from ferrule.errors import DuplicateTool
from ferrule.search.document import Document, documents_of
from ferrule.search.postings import Postings
from ferrule.search.words import fold, terms_of
from ferrule.spec import Tool

_T = TypeVar("_T")

_CONSIDERED = 200
"""Documents looked at for each requirement."""
_LONGEST_QUERY = 2_000
"""Characters; whoever pastes a whole page is answered by its beginning, and in no time."""
_MOST_TERMS = 50
_MET = 0.5
"""A tool meets a requirement if it has at least this share of what its words count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A tool that was found."""

    tool: Tool
    score: float
    """How well it fits; comparable only within one search."""
    actions: tuple[str, ...]
    """Those of its actions that were found, best first."""
    matched: tuple[str, ...]
    """The terms of the query that the best of them has."""


class SearchIndex:
    """Enabled tools, ready to be found. Tools come and go one by one; nothing is ever built anew."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._postings = Postings()
        self._numbers = count()
        self._documents: dict[tuple[str, str], tuple[Tool, list[Document]]] = {}
        self._by_name: dict[str, dict[Document, None]] = {}
        self._by_tag: dict[str, dict[Tool, None]] = {}
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
                f"Tool {tool.id!r} of source {tool.source!r} is in the index already. Use replace to put in another."
            )
        documents = documents_of(tool, self._numbers)
        self._documents[key] = (tool, documents)
        for document in documents:
            self._postings.add(document)
            for name in document.names:
                self._by_name.setdefault(name, {})[document] = None
        if documents:
            for tag in tool.spec.tags:
                self._by_tag.setdefault(fold(tag), {})[tool] = None

    def remove(self, tool_id: str, source: str) -> bool:
        """Take out what a source brought under an id; False when it was not there."""
        known = self._documents.pop((tool_id, source), None)
        if known is None:
            return False
        tool, documents = known
        for document in documents:
            self._postings.remove(document)
            for name in document.names:
                _discard(self._by_name, name, document)
        for tag in {fold(tag) for tag in tool.spec.tags} if documents else ():
            _discard(self._by_tag, tag, tool)
        return True

    def replace(self, tool: Tool) -> None:
        """Put a tool in the place of the one with its id in its source, or add it."""
        self.remove(tool.id, tool.source)
        self.add(tool)

    # Finding

    def search(self, text: str, limit: int = 10) -> list[Hit]:
        """The tools that fit a text best: those of exactly this name first, equals by source and id."""
        if limit < 1:
            return []
        query = self._postings.weigh(_terms(text))
        scores = self._postings.score(query, limit)
        named = sorted(self._by_name.get(fold(text), ()), key=lambda document: document.order)
        by_tool = self._by_tool(named, scores, limit)
        return [_hit(documents, scores, query) for documents in by_tool[:limit]]

    def search_by_tags(self, tags: Sequence[str]) -> list[Tool]:
        """Tools that have any of the tags, those with most of them first."""
        having = Counter(tool for tag in {fold(tag) for tag in tags} for tool in self._by_tag.get(tag, ()))
        return sorted(having, key=lambda tool: (-having[tool], tool.priority, tool.id))

    def search_by_requirements(self, requirements: Sequence[str]) -> list[Tool]:
        """Tools that meet any of the requirements by their names, tags, descriptions or actions; best first.

        A tool that meets more of them comes before one that fits a single one better.
        """
        met: Counter[Tool] = Counter()
        fit: dict[Tool, float] = {}
        for requirement in requirements:
            for tool, score in self._meeting(requirement).items():
                met[tool] += 1
                fit[tool] = fit.get(tool, 0.0) + score
        return sorted(met, key=lambda tool: (-met[tool], -fit[tool], tool.priority, tool.id))

    def _by_tool(self, first: list[Document], scores: dict[int, float], limit: int) -> list[list[Document]]:
        """The documents of the best tools, tool by tool."""
        wanted = limit
        while True:
            found: dict[Tool, dict[Document, None]] = {}
            for document in [*first, *self._postings.best(scores, wanted)]:
                found.setdefault(document.tool, {})[document] = None
            if len(found) >= limit or wanted >= len(scores):
                return [list(documents) for documents in found.values()]
            wanted *= 8  # one tool with many actions stands before the others

    def _meeting(self, requirement: str) -> dict[Tool, float]:
        query = self._postings.weigh(_terms(requirement))
        whole = sum(query.values())
        scores = self._postings.score(query, _CONSIDERED)
        best: dict[Tool, float] = {}
        for document in self._postings.best(scores, _CONSIDERED):
            having = sum(worth for term, worth in query.items() if term in document.weights)
            if having >= whole * _MET:
                best.setdefault(document.tool, scores[document.number])
        return best


def _terms(query: str) -> list[str]:
    return list(dict.fromkeys(terms_of(query[:_LONGEST_QUERY])))[:_MOST_TERMS]


def _hit(documents: list[Document], scores: Mapping[int, float], query: Mapping[str, float]) -> Hit:
    first = documents[0]
    return Hit(
        tool=first.tool,
        score=scores.get(first.number, 0.0),
        actions=tuple(document.action for document in documents if document.action is not None),
        matched=tuple(term for term in query if term in first.weights),
    )


def _discard(index: dict[str, dict[_T, None]], key: str, value: _T) -> None:
    values = index[key]
    del values[value]
    if not values:
        del index[key]
