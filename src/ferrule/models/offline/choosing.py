"""Which tool a step asks for, and how sure that is.

A tool is chosen when the words of the step that are not arguments are its words: those of its name and description.
Words nobody knows count against it, and one weak word is not enough: a tool may do things that cannot be undone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferrule.models.offline.catalogue import Catalogue, Offer
from ferrule.models.offline.expressions import expression_in
from ferrule.models.offline.filling import Filling, fill
from ferrule.models.offline.parameter import Parameter
from ferrule.models.offline.places import currencies_in
from ferrule.models.offline.reading import STRUCK, Reading
from ferrule.models.offline.vocabulary import chinese_runs, is_generic, spelled_out, without_frame
from ferrule.search.words import is_cjk, terms_of
from ferrule.tags import DEFAULT_TABLE

SURE = 0.55
"""A tool is called from here on."""
_LIKELY = 0.3
"""A tool may be meant from here on."""
_WEAK = 0.4
"""What a word counts that only a parameter speaks of."""
_PURE = 0.8
"""How sure a question is that is nothing but values of the tool's kinds."""
_NAME_COUNTS = 0.65
"""How much of what speaks for a tool must be its name."""
_STEM = 5
"""Letters that words of one meaning have in common at their beginning."""
LONGEST_STEP = 1_000
"""Characters outside of quotes: what is longer is no request that words can be matched with."""
_CERTAIN = 0.95
_LOOKED_AT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A tool for a step."""

    offer: Offer
    filling: Filling
    confidence: float
    """From 0 to 1."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.filling.calls

    @property
    def missing(self) -> list[Parameter]:
        return self.filling.missing

    @property
    def is_ready(self) -> bool:
        """Whether it can be called as it is."""
        return not self.filling.missing and all(map(self.offer.accepts, self.calls))


def choose(catalogue: Catalogue, text: str, now: datetime, *, sure: float = SURE) -> Choice | None:
    """The tool a text asks for; None when that is not sure enough. It may lack arguments."""
    if len(Reading(text).unquoted.replace(STRUCK, "")) > LONGEST_STEP:
        return None
    choices = [choice for choice in _rank(catalogue, text, now) if choice.confidence >= sure]
    choices = [choice for choice in choices if choice.is_ready or choice.missing]
    # Of tools that fit about as well the one that has all it needs is meant.
    ready = [choice for choice in choices if choice.is_ready and choice.confidence >= choices[0].confidence * 0.75]
    if len(ready) > 1 and ready[0].confidence == ready[1].confidence < _CERTAIN:
        return None  # it could be either, and one of them may do harm
    return next(iter(ready or choices), None)


def shortlist(catalogue: Catalogue, text: str, now: datetime) -> list[Offer]:
    """The tools a text may ask for, the likeliest first: somebody else will choose among them."""
    return [choice.offer for choice in _rank(catalogue, text, now) if choice.confidence >= _LIKELY]


def nearest(catalogue: Catalogue, text: str, most: int = 3) -> list[Offer]:
    """The tools to name when none is sure enough."""
    return catalogue.search(text, most) or list(catalogue.offers.values())[:most]


def _rank(catalogue: Catalogue, text: str, now: datetime) -> list[Choice]:
    text = spelled_out(text)
    offers = catalogue.search(text, _LOOKED_AT)
    by_kind = catalogue.computing if expression_in(text) is not None else []
    by_kind = by_kind or (catalogue.exchanging if len(currencies_in(text)) > 1 else [])
    offers += [offer for offer in by_kind[:_LOOKED_AT] if offer not in offers]
    choices = []
    for offer in offers:
        filling = fill(offer, text, now)
        choices.append(Choice(offer=offer, filling=filling, confidence=_confidence(offer, filling)))
    return sorted(choices, key=lambda choice: (-choice.confidence, bool(choice.filling.missing)))


def _confidence(offer: Offer, filling: Filling) -> float:
    asked = filling.left.replace(STRUCK, " ")
    known, all_words, named = _english(offer, asked)
    chinese_known, chinese_all, chinese_named = _chinese(offer, asked)
    known, all_words = known + chinese_known, all_words + chinese_all
    named = {*named, *chinese_named}
    if not all_words:
        pure = filling.telling and not filling.missing
        return _PURE if pure and (filling.telling > 1 or _computes(offer)) else 0.0
    if not named and not (_computes(offer) and filling.telling):
        return 0.0
    of_name = [term for term in offer.name_terms if any(_are_alike(term, said) for said in named)]
    by_name = len(of_name) / len(offer.name_terms) if offer.name_terms else 1.0
    # Several words of the description are as good as half the name, and so is a value of the form it asks for.
    if by_name < 0.5 and (len(named) > 1 or filling.by_form):
        by_name = 0.5
    if by_name < 1.0 and not filling.by_form and not any(parameter.required for parameter in offer.parameters):
        by_name /= 2  # nothing else speaks for it
    sure = known / all_words * (1 - _NAME_COUNTS + _NAME_COUNTS * by_name)
    if filling.telling and _computes(offer) and all_words <= 1:
        sure = max(sure, _PURE * (known + 1) / (all_words + 1))
    return sure


def _computes(offer: Offer) -> bool:
    return any(parameter.kind == "expression" for parameter in offer.parameters)


def _english(offer: Offer, text: str) -> tuple[float, float, set[str]]:
    """How many of the words that say something the tool knows, how many there are, and those its own text has."""
    known, count = 0.0, 0
    named: set[str] = set()
    for match in re.finditer(r"[A-Za-z][\w'’-]*|\d[\w.-]*", text):
        terms = [term for term in terms_of(match.group()) if not is_generic(term) and not is_cjk(term)]
        if not terms:
            continue
        count += 1
        own = [term for term in terms if _is_known(term, offer)]
        if own:
            known += 1
            named.update(_known_as(term, offer) for term in own)
        elif offer.parameter_terms.intersection(terms):
            known += _WEAK
    return known, count, named


def _is_known(term: str, offer: Offer) -> bool:
    return term in offer.terms or bool(_alike(term, offer)) or bool(offer.tags.intersection(_tags_of(term)))


def _known_as(term: str, offer: Offer) -> str:
    return term if term in offer.terms else _alike(term, offer) or f"#{term}"


def _alike(term: str, offer: Offer) -> str:
    return next((other for other in offer.terms if _are_alike(term, other)), "")


def _are_alike(one: str, other: str) -> bool:
    """`remind` is known to a tool that speaks of a reminder."""
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    return len(short) >= _STEM and short.isalpha() and short.isascii() and long.startswith(short)


def _tags_of(term: str) -> list[str]:
    return DEFAULT_TABLE.tags_in([term])


def _chinese(offer: Offer, text: str) -> tuple[float, float, set[str]]:
    """The same for Chinese, counted in pairs of characters."""
    known = count = 0.0
    named: set[str] = set()
    words = offer.chinese_words
    for run in chinese_runs(text):
        there = [word for word in words if word in run.group()]
        named.update(words[word] for word in there)
        # Words may overlap: 火车票 is 火车 and 车票.
        covered = {at for word in there for m in re.finditer(re.escape(word), run.group()) for at in range(*m.span())}
        rest = "".join(STRUCK if at in covered else char for at, char in enumerate(run.group()))
        unknown = [part for piece in rest.split(STRUCK) if piece for part in without_frame(piece)]
        known += len(covered) / 2
        count += (len(covered) + sum(map(len, unknown))) / 2
    return known, count, named
