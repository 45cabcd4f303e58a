"""Splitting a request into the jobs it consists of: `Read the paper, translate it, and send it to Bob` has three.

A search for a request with several jobs finds tools for the one that most of its words are about. So each job is
searched for as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import contains_chinese
from ferrule.texts.shorten import single_line

MAX_JOBS: Final = 6
_MIN_TERMS: Final = 2
"""Fewer say too little to be searched for on their own."""
_SENTENCE_END = lazy_pattern(r"(?<=[.!?;:]) |[。！？；：]")
_JOINT = lazy_pattern(r"[,，、]|(?<= )(?:and|then|or)(?= )|然后|并且|同时|以及|接着|最后|再")
"""Where another job may begin within a sentence."""


def split_jobs(text: str, begins_action: Callable[[str], bool]) -> list[str]:
    """Return the jobs of a text if they are several, at most `MAX_JOBS`.

    `begins_action` tells whether a term is one that names or descriptions of actions begin with, as verbs are: what
    follows a comma or an `and` is another job only if it begins with one. Chinese verbs have no such place.
    """
    jobs: dict[str, None] = {}
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(single_line(line)):
            for job in _split_sentence(sentence, begins_action):
                if len(set(extract_terms(job))) >= _MIN_TERMS:
                    jobs[job] = None
    return list(jobs)[:MAX_JOBS] if len(jobs) > 1 else []


def _split_sentence(sentence: str, begins_action: Callable[[str], bool]) -> Iterator[str]:
    start = end = next_start = 0
    for joint in [*_JOINT.finditer(sentence), None]:
        clause_start, (clause_end, next_start) = next_start, joint.span() if joint else (len(sentence), len(sentence))
        clause = sentence[clause_start:clause_end]
        terms = extract_terms(clause)
        if len(set(terms)) >= _MIN_TERMS and (contains_chinese(clause) or begins_action(terms[0])):
            yield sentence[start:end].strip()
            start = clause_start
        if terms:
            end = clause_end
    yield sentence[start:end].strip()
