"""Ranking documents for a query with BM25F.

A tool is one document for each of its actions. An MCP server with forty actions is forty documents: each is as easy
to find as a tool of its own, and a hit tells which action matched.

Occurrences of a term count by the weight of their field, less in a long field, and each further one counts less. The
length of a field is compared with a fixed one, not with the average of all tools: so the weights of a document never
change when other tools are added or removed, and are computed once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from math import log
from typing import Any

from ferrule.catalog.search.terms import extract_index_terms, extract_terms, remove_case_and_punctuation, similar_terms
from ferrule.core.json_schema import properties_of, read_list_keyword
from ferrule.core.spec import Tool, ToolCapability
from ferrule.texts.language import begins_with_cjk

_SATURATION = 1.2
_MAX_BEGINNING = 60
"""Characters in which the first term of a description is looked for."""
_MIN_BEGINNINGS = 2
"""Of so many documents, at least, the name or the description begins with a verb."""


@dataclass(frozen=True, slots=True)
class _Field:
    weight: float
    usual_length: int
    """Terms; occurrences in a longer field count less."""
    length_effect: float
    """0 = length does not matter, 1 = fully."""


_NAME = _Field(3.0, 3, 0.3)
_TAGS = _Field(2.0, 3, 0.0)
_ACTION = _Field(2.5, 3, 0.3)
_DESCRIPTION = _Field(1.5, 15, 0.5)
_SHARED_DESCRIPTION = _Field(0.5, 15, 0.5)
_PARAMETERS = _Field(0.4, 25, 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class ActionDocument:
    """One action of a tool in the index."""

    number: int
    tool: Tool
    action: str | None
    """None: the tool has no action yet."""
    order: str
    """Its order among documents with equal scores: priority of its source, then id, then number of the action."""
    names: frozenset[str]
    """A query that is exactly one of these finds this document first."""
    weights: dict[str, float]
    """The weight of each term, from 0 to 1."""
    first_terms: frozenset[str]
    """The terms that the name and the description of the action begin with; most are verbs."""


def make_documents(tool: Tool, numbers: Iterator[int]) -> list[ActionDocument]:
    """Return the numbered documents of an enabled tool; nothing for a disabled one."""
    if not tool.spec.enabled:
        return []
    spec, documents = tool.spec, list[ActionDocument]()
    capabilities: Sequence[ToolCapability | None] = spec.capabilities or [None]
    for position, capability in enumerate(capabilities):
        names = {spec.tool_id, spec.name}
        if capability is not None and len(spec.capabilities) > 1:
            names |= {capability.name, f"{spec.tool_id}{capability.name}"}
        action, description = (capability.name, capability.description) if capability else (spec.name, "")
        beginnings = (action, (description or spec.description)[:_MAX_BEGINNING])
        document = ActionDocument(
            number=next(numbers),
            tool=tool,
            action=capability.name if capability is not None else None,
            order=f"{tool.priority} {tool.id}\0{tool.source}\0{position:06}",
            names=frozenset(map(remove_case_and_punctuation, names)),
            weights=_weigh_terms(_document_fields(tool, capability)),
            first_terms=frozenset(term for text in beginnings for term in extract_terms(text)[:1]),
        )
        documents.append(document)
    return documents


def _document_fields(tool: Tool, capability: ToolCapability | None) -> Iterator[tuple[_Field, str]]:
    spec = tool.spec
    yield _NAME, spec.tool_id if spec.name == spec.tool_id else f"{spec.tool_id} {spec.name}"
    if spec.tags:
        yield _TAGS, " ".join(spec.tags)
    if capability is None:
        yield _DESCRIPTION, spec.description
        return
    if capability.name != spec.tool_id:
        yield _ACTION, capability.name
    yield _DESCRIPTION, capability.description
    if spec.description != capability.description:
        yield _DESCRIPTION if len(spec.capabilities) == 1 else _SHARED_DESCRIPTION, spec.description
    texts: list[Any] = []
    for name, schema in properties_of(capability.schema_or_empty).items():
        texts.append(name)
        if isinstance(schema, dict):
            texts += [schema.get("description"), *read_list_keyword("enum", schema)]
    yield _PARAMETERS, " ".join(text for text in texts if isinstance(text, str))


def _weigh_terms(fields: Iterator[tuple[_Field, str]]) -> dict[str, float]:
    occurrences: dict[str, float] = {}
    for field, text in fields:
        terms = extract_index_terms(text)
        weight = field.weight / (1 + field.length_effect * (len(terms) / field.usual_length - 1))
        for term in terms:
            occurrences[term] = occurrences.get(term, 0.0) + weight
    return {term: count / (_SATURATION + count) for term, count in occurrences.items()}


# The inverted index: the documents of each term, with its weight in them.
#
# Terms that nearly all documents have would make a query slow and hardly change its result. So the lists are read from
# the rarest term on, completely only while they are short. Of more common terms only the best documents are added, and
# only where these terms could still change the result; documents already found get their share of them in any case.

_MAX_ENTRIES_READ = 2_000
"""Entries of lists that are read completely for one query."""
_BEST_OF_COMMON_TERM = 50
"""Documents of a very common term that are added, unless more results are requested."""
_MAX_CANDIDATES = 250
"""Documents found by rare terms that are looked up in the lists of common ones."""
_SIMILAR_WEIGHT = 0.5
"""How much a term counts that is only similar to one in the query."""
_TRANSLATION_WEIGHT = 0.7
"""How much a term counts that is the English one for a Chinese word of the query."""


class TermIndex:
    """Which documents have which terms. Documents are referred to by number."""

    def __init__(self) -> None:
        self._documents: dict[int, ActionDocument] = {}
        self._lists: dict[str, dict[int, float]] = {}
        self._best: dict[str, list[int]] = {}
        self._vocabulary: list[str] | None = None
        self._first_terms: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[ActionDocument]:
        return iter(self._documents.values())

    def __getitem__(self, number: int) -> ActionDocument:
        return self._documents[number]

    def __contains__(self, number: object) -> bool:
        return number in self._documents

    def add(self, document: ActionDocument) -> None:
        lists, number = self._lists, document.number
        for term, weight in document.weights.items():
            lists.setdefault(term, {})[number] = weight
        self._documents[number] = document
        self._first_terms.update(document.first_terms)
        self._clear_caches()

    def remove(self, document: ActionDocument) -> None:
        for term in document.weights:
            entries = self._lists[term]
            del entries[document.number]
            if not entries:
                del self._lists[term]
        del self._documents[document.number]
        self._first_terms.subtract(document.first_terms)
        self._clear_caches()

    def begins_action(self, term: str) -> bool:
        """Return whether the names or descriptions of several actions begin with a term."""
        return self._first_terms[term] >= _MIN_BEGINNINGS

    def weigh(self, terms: list[str], translations: Iterable[str] = ()) -> dict[str, float]:
        """Weigh the terms of a query: rare ones count more, unknown ones are replaced by similar ones.

        Of the terms in another language, those that are known count too.
        """
        weights = {term: self._rarity(term) for term in terms if term in self._lists}
        has_cjk = any(map(begins_with_cjk, weights))
        for term in terms:
            # An unknown pair of Chinese characters may just join two words; single ones count if no pair is known.
            if term not in self._lists and not (has_cjk and begins_with_cjk(term)):
                for similar in self._similar_terms(term):
                    weights.setdefault(similar, self._rarity(similar) * _SIMILAR_WEIGHT)
        for term in translations:
            if term in self._lists:
                weights.setdefault(term, self._rarity(term) * _TRANSLATION_WEIGHT)
        return weights

    def score(self, query: Mapping[str, float], limit: int) -> dict[int, float]:
        """Return the scores of documents that have some of the terms, with the `limit` best ones among them."""
        rare, common = self._split_by_rarity(query)
        scores: dict[int, float] = {}
        for term in rare:
            term_weight = query[term]
            for number, weight in self._lists[term].items():
                scores[number] = scores.get(number, 0.0) + term_weight * weight
        return self._add_common(scores, {term: query[term] for term in common}, limit) if common else scores

    def best_documents(self, scores: Mapping[int, float], limit: int) -> list[ActionDocument]:
        """Return the documents with the highest scores, best first, equals in their order."""
        numbers: Iterable[int] = scores
        if limit < len(scores):
            # Most have the same few scores: sorting them all would take longer than computing them did.
            lowest = nlargest(limit, scores.values())[-1]
            better = [number for number, score in scores.items() if score > lowest]
            equal = (number for number, score in scores.items() if score == lowest)
            numbers = better + nsmallest(limit - len(better), equal, key=self._sort_key)
        return [self._documents[number] for number in sorted(numbers, key=lambda n: (-scores[n], self._sort_key(n)))]

    def _split_by_rarity(self, query: Mapping[str, float]) -> tuple[list[str], list[str]]:
        """Return the rare terms, whose lists are read completely, and the common ones."""
        terms = sorted(query, key=lambda term: len(self._lists[term]))
        entries = 0
        for position, term in enumerate(terms):
            entries += len(self._lists[term])
            if entries > _MAX_ENTRIES_READ:
                return terms[:position], terms[position:]
        return terms, []

    def _add_common(self, scores: dict[int, float], common: Mapping[str, float], limit: int) -> dict[int, float]:
        # A document gains at most `gain` by the common terms, so one that stays below the lowest result is dropped,
        # and documents with only common terms can matter only if `gain` reaches the lowest result.
        gain = sum(common.values())
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        lowest = scores[ranked[limit - 1]] if len(ranked) >= limit else 0.0
        best = ranked[: max(_MAX_CANDIDATES, limit)]
        candidates = {number: scores[number] for number in best if scores[number] >= lowest - gain}
        if gain >= lowest:
            for term in common:
                count = max(_BEST_OF_COMMON_TERM, limit)
                best_of_term = self._best.get(term)
                if best_of_term is None or len(best_of_term) < min(count, len(self._lists[term])):
                    best_of_term = [document.number for document in self.best_documents(self._lists[term], count)]
                    self._best[term] = best_of_term
                for number in best_of_term:
                    candidates.setdefault(number, scores.get(number, 0.0))
        for term, term_weight in common.items():
            entries = self._lists[term]
            for number in candidates:
                if number in entries:
                    candidates[number] += term_weight * entries[number]
        return candidates

    def _sort_key(self, number: int) -> str:
        return self._documents[number].order

    def _rarity(self, term: str) -> float:
        documents = len(self._lists[term])
        return log(1 + (len(self._documents) - documents + 0.5) / (documents + 0.5))

    def _similar_terms(self, term: str) -> list[str]:
        if begins_with_cjk(term):
            return [char for char in term if char in self._lists]
        if self._vocabulary is None:
            self._vocabulary = sorted(self._lists)
        begin = bisect_left(self._vocabulary, term[0])
        end = bisect_left(self._vocabulary, chr(ord(term[0]) + 1))
        return similar_terms(term, self._vocabulary[begin:end])

    def _clear_caches(self) -> None:
        self._vocabulary = None
        if self._best:
            self._best = {}
