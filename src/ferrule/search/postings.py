"""The inverted index: for each term the documents that have it, with its weight in them.

Terms that nearly all documents have would make a query slow and tell it nothing. So the lists are read from the
rarest term on, and whole only while that is short work. Of the commoner terms only the best documents are looked
at, and only where these terms could still matter; documents already found get their share of them either way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from itertools import islice
from math import log

from ferrule.search.document import Document
from ferrule.search.near_terms import near_terms
from ferrule.search.words import is_cjk

_READ_WHOLE = 2_000
"""Entries of lists that are read from beginning to end in one query."""
_BEST = 50
"""How many of the documents of a very common term are looked at, unless more are wanted."""
_KEPT = 250
"""How many of the documents found by rare terms are looked up in the lists of common ones."""
_NEAR = 0.5
"""What a term counts that is only near to what was asked for."""


class Postings:
    """Which documents have which terms. Documents go by their numbers."""

    def __init__(self) -> None:
        self._documents: dict[int, Document] = {}
        self._lists: dict[str, dict[int, float]] = {}
        self._best: dict[str, list[int]] = {}
        self._vocabulary: list[str] | None = None

    def __getitem__(self, number: int) -> Document:
        return self._documents[number]

    def add(self, document: Document) -> None:
        lists, number = self._lists, document.number
        for term, weight in document.weights.items():
            entries = lists.get(term)
            if entries is None:
                lists[term] = {number: weight}
            else:
                entries[number] = weight
        self._documents[number] = document
        self._forget()

    def remove(self, document: Document) -> None:
        for term in document.weights:
            entries = self._lists[term]
            del entries[document.number]
            if not entries:
                del self._lists[term]
        del self._documents[document.number]
        self._forget()

    def weigh(self, terms: list[str]) -> dict[str, float]:
        """What each term of a query counts: rare ones more. Unknown ones are taken for those near to them."""
        weighed = {term: self._rarity(term) for term in terms if term in self._lists}
        has_cjk = any(map(is_cjk, weighed))
        for term in terms:
            # A pair of characters may just join two words; only when none is known do single ones count.
            if term not in self._lists and not (has_cjk and is_cjk(term)):
                for near in self._near(term):
                    weighed.setdefault(near, self._rarity(near) * _NEAR)
        return weighed

    def score(self, query: Mapping[str, float], wanted: int) -> dict[int, float]:
        """Documents that have some of the terms, the `wanted` best among them, and how well they fit."""
        rare, common = self._parted(query)
        scores: dict[int, float] = {}
        for term in rare:
            count = query[term]
            for number, weight in self._lists[term].items():
                scores[number] = scores.get(number, 0.0) + count * weight
        return self._with_common(scores, {term: query[term] for term in common}, wanted) if common else scores

    def best(self, scores: Mapping[int, float], wanted: int) -> list[Document]:
        """The documents with the highest scores, best first, equals in their order."""
        found: Iterable[int] = scores
        if wanted < len(scores):
            # Most have the same few scores: sorting them all would take longer than finding them did.
            least = nlargest(wanted, scores.values())[-1]
            better = [number for number, score in scores.items() if score > least]
            equal = (number for number, score in scores.items() if score == least)
            found = better + nsmallest(wanted - len(better), equal, key=self._order)
        return [self._documents[number] for number in sorted(found, key=lambda n: (-scores[n], self._order(n)))]

    def _parted(self, query: Mapping[str, float]) -> tuple[list[str], list[str]]:
        terms = sorted(query, key=lambda term: len(self._lists[term]))
        read = 0
        for place, term in enumerate(terms):
            read += len(self._lists[term])
            if read > _READ_WHOLE:
                return terms[:place], terms[place:]
        return terms, []

    def _with_common(self, scores: dict[int, float], common: Mapping[str, float], wanted: int) -> dict[int, float]:
        still_to_come = sum(common.values())
        ranked = sorted(scores.values(), reverse=True)
        enough = ranked[wanted - 1] if len(ranked) >= wanted else 0.0
        kept = _cut(scores, ranked, max(_KEPT, wanted), enough - still_to_come)
        if still_to_come >= enough:
            for term in common:
                for number in self._best_of(term, max(_BEST, wanted)):
                    kept.setdefault(number, scores.get(number, 0.0))
        for term, count in common.items():
            entries = self._lists[term]
            for number in kept:
                if number in entries:
                    kept[number] += count * entries[number]
        return kept

    def _best_of(self, term: str, wanted: int) -> list[int]:
        best = self._best.get(term)
        if best is None or len(best) < min(wanted, len(self._lists[term])):
            best = self._best[term] = [document.number for document in self.best(self._lists[term], wanted)]
        return best

    def _order(self, number: int) -> str:
        return self._documents[number].order

    def _rarity(self, term: str) -> float:
        having = len(self._lists[term])
        return log(1 + (len(self._documents) - having + 0.5) / (having + 0.5))

    def _near(self, term: str) -> list[str]:
        if is_cjk(term):
            return [char for char in term if char in self._lists]
        if self._vocabulary is None:
            self._vocabulary = sorted(self._lists)
        begin = bisect_left(self._vocabulary, term[0])
        end = bisect_left(self._vocabulary, chr(ord(term[0]) + 1))
        return near_terms(term, self._vocabulary[begin:end])

    def _forget(self) -> None:
        """What was worked out from the lists holds no more."""
        self._vocabulary = None
        if self._best:
            self._best = {}


def _cut(scores: dict[int, float], ranked: list[float], most: int, least: float) -> dict[int, float]:
    """The `most` best scores that are not below the `least`; of equals at the edge those met first."""
    if len(ranked) <= most:
        return {number: score for number, score in scores.items() if score >= least}
    edge = max(least, ranked[most - 1])
    kept = {number: score for number, score in scores.items() if score > edge}
    at_edge = ((number, score) for number, score in scores.items() if score == edge)
    kept.update(islice(at_edge, most - len(kept)))
    return kept
