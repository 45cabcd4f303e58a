"""The arguments of a call, from the words of a question.

Values that show what they are go first (an address, a date, a member of an enum), then numbers and lists, then text;
what was used is struck out. Of two values of one kind each parameter gets the one that stands by its name, or behind
its preposition (`from`, `to`); the others are taken in order. Optional parameters are filled only where the question
speaks of them. Nothing is made up: what cannot be found is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferrule.models.offline.catalogue import Offer
from ferrule.models.offline.expressions import expression_in
from ferrule.models.offline.fitting import as_asked, fits, nearness, with_name
from ferrule.models.offline.free_text import identifier, marked, places, rest
from ferrule.models.offline.lists import fill_list
from ferrule.models.offline.literals import emails_in, matching, members_in, paths_in, urls_in
from ferrule.models.offline.moments import moments_in
from ferrule.models.offline.numbers import numbers_in
from ferrule.models.offline.parameter import BODIES, QUERIES, TITLES, Parameter, said_words
from ferrule.models.offline.places import currencies_in, languages_in, zones_in
from ferrule.models.offline.reading import Found, Reading
from ferrule.models.offline.vocabulary import is_chinese
from ferrule.search.words import terms_of

_LEAD = re.compile(r"(?:\b(?:in|at|on|for|to|from|into|by|of|as|with|until|and)|[从到在给于])\s*\Z", re.IGNORECASE)
_NO = re.compile(r"(?:\b(?:not|no|without|don'?t|never|disabled?)\b[\w\s]{0,12}|不要?|别|无需)\s*\Z", re.IGNORECASE)
_SAYS_ON = frozenset({"includ", "enabl", "use", "is", "should", "allow", "flag"})
"""Words of a switch's name that do not say what it switches."""
_BY_PLACE = ("text", "place", "id", "object", "array")
_MOMENTS = ("datetime", "date", "time")
_OF_THE_ANSWER = re.compile(r"\blanguage of the (?:answer|reply|output)\b|(?:回答|答复|输出)的?语言", re.IGNORECASE)
_LONGEST_NAME = 4
"""Words of a name that nothing but its place in the sentence shows."""
_NO_NAME = re.compile(
    r"\b(?:this|that|these|those|same|who|which|previous|is|are|was|be|should|would|can|could|will|with|from|for|and|if"
    r"|using|based|such|it|i|my|your|their)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a tool could be called with."""

    calls: list[dict[str, Any]]
    """One set of arguments, or one for each place the question names."""
    missing: list[Parameter]
    """Required, and not said."""
    left: str
    """The question with what was used struck out."""
    telling: int
    """How many values were found that say by themselves what the question is about."""
    by_form: bool
    """Whether a required value, or a date, was found by its form, and not only by its place in the sentence."""


def fill(offer: Offer, text: str, now: datetime) -> Filling:
    """The arguments for a tool that a text gives."""
    filler = _Filler(offer, Reading(text), now)
    filler.by_name()
    filler.by_form()
    filler.moments()
    filler.enums()
    filler.switches()
    filler.lists()
    filler.numbers()
    filler.texts()
    filler.language_of_the_answer()
    missing = [p for p in offer.parameters if p.required and p.name not in filler.found and "default" not in p.schema]
    spread = [{**filler.found, name: value} for name, values in filler.several.items() for value in values]
    shown = [p for p in offer.parameters if p.required and p.kind not in _BY_PLACE or p.kind in _MOMENTS]
    by_form = any(p.name in filler.found for p in shown)
    return Filling(
        calls=spread or [filler.found], missing=missing, left=filler.left, telling=filler.telling, by_form=by_form
    )


class _Filler:
    """One method for each kind of value, in the order they are looked for."""

    def __init__(self, offer: Offer, reading: Reading, now: datetime) -> None:
        self._offer = offer
        self._reading = reading
        self._now = now
        self.found: dict[str, Any] = {}
        self.several: dict[str, list[Any]] = {}
        """Values of one parameter for which the tool must be called several times."""
        self.telling = 0

    @property
    def left(self) -> str:
        return self._reading.left

    def by_name(self) -> None:
        """`city=Paris`, `"limit": 5`: who writes a parameter's name means it."""
        for parameter in self._open():
            match = re.search(
                rf"(?<![\w.]){re.escape(parameter.name)}[\"']?\s*(?:=|[:：]\s)\s*(\"[^\"]*\"|'[^']*'|[^\s,;，；。\0]+)",
                self.left,
            )
            value = self._typed(parameter, match[1].strip("\"'")) if match is not None else None
            if match is not None and value is not None:
                self.found[parameter.name] = value
                self._reading.strike(*match.span())

    def by_form(self) -> None:
        for kind, find in _FINDERS.items():
            asked = self._open(kind)
            if asked:
                kept = self._assign(asked, find(self._reading, asked[0]))
                self.telling += kept if kind in _TELLING else 0

    def moments(self) -> None:
        """A date and a time of day may be two parameters, or one."""
        if not self._open(*_MOMENTS):
            return
        said = moments_in(self._reading.unquoted, self._now)
        for kind in _MOMENTS:
            asked = self._open(kind)
            self._assign(asked, [Found(moment, moment.start, moment.end) for moment in said])

    def enums(self) -> None:
        for parameter in self._open("enum"):
            found = members_in(self.left, parameter.schema["enum"])
            # The words that ask for the tool may be members by chance: `search` of a tool called search.
            own = [one for one in found if not self._offer.name_terms.issuperset(terms_of(str(one.value)))] or found
            if len({str(one.value) for one in own}) > 1:
                own = [one for one in own if nearness(one, parameter, self._reading.text)] or own
            if own:
                self._keep(parameter, with_name(own[0], parameter, self.left))

    def switches(self) -> None:
        for parameter in self._open("boolean"):
            words = {word for word in said_words(parameter) if word not in _SAYS_ON}
            text = self._reading.unquoted
            said = [match for match in re.finditer(r"[^\W_]+", text) if _means(match.group(), words)]
            seen = {word for match in said for word in _means(match.group(), words)}
            if words and seen >= words and not words <= self._offer.name_terms:
                self.found[parameter.name] = _NO.search(text[: said[0].start()]) is None
                for match in said:
                    self._reading.strike(*match.span())

    def lists(self) -> None:
        for parameter in self._open("array"):
            value = fill_list(parameter, self._reading)
            if value is not None:
                self.found[parameter.name] = value

    def numbers(self) -> None:
        asked = self._open("number")
        self._assign(asked, numbers_in(self._reading.unquoted) if asked else [], in_order=False)
        required = [parameter for parameter in self._open("number") if parameter.required]
        self._assign(required, numbers_in(self._reading.unquoted) if required else [])

    def texts(self) -> None:
        for parameter in self._open("id"):
            found = identifier(self._reading, parameter)
            if found is not None and (parameter.required or nearness(found, parameter, self._reading.text)):
                self._keep(parameter, found)
        for parameter in self._open("place"):
            self._assign_places(parameter)
        for parameter in self._open("text", "path", "language", "id", "pattern"):
            found = marked(self._reading, parameter)
            if found is not None and fits(found.value, parameter):
                self._keep(parameter, found)
        self._assign_quotes()
        self._assign_rest()

    def language_of_the_answer(self) -> None:
        """What is asked in Chinese is answered in Chinese, where the tool can."""
        for parameter in self._open("language"):
            if _OF_THE_ANSWER.search(parameter.description) and is_chinese(self._reading.text):
                self.found[parameter.name] = as_asked("Chinese zh", parameter)

    def _assign(self, asked: list[Parameter], found: list[Found], *, in_order: bool = True) -> int:
        """Values of one kind to the parameters of that kind; how many got one."""
        waiting = list(found)
        before = len(self.found)
        text = self._reading.text
        pairs = [(nearness(one, parameter, text), parameter, one) for parameter in asked for one in found]
        for near, parameter, one in sorted(pairs, key=lambda pair: -pair[0]):
            if near and one in waiting and parameter.name not in self.found and fits(one.value, parameter):
                self._keep(parameter, with_name(one, parameter, self.left))
                waiting.remove(one)
        for parameter in asked if in_order else ():
            one_left = next((one for one in waiting if fits(one.value, parameter)), None)
            if one_left is not None and parameter.name not in self.found:
                self._keep(parameter, one_left)
                waiting.remove(one_left)
        if waiting and len(asked) == 1 and asked[0].kind == "zone":
            self.several[asked[0].name] = [self.found[asked[0].name], *(self._reading.take(one) for one in waiting)]
        return len(self.found) - before

    def _assign_places(self, parameter: Parameter) -> None:
        found = [one for one in places(self._reading, self._offer, parameter) if fits(one.value, parameter)]
        if not found:
            return
        self._keep(parameter, found[0])
        if len(found) > 1 and not self._open("place"):
            self.several[parameter.name] = [found[0].value, *(self._reading.take(one) for one in found[1:])]

    def _assign_quotes(self) -> None:
        asked = [p for p in self._open("text", "path", "id", "place", "language", "pattern") if p.required]
        for parameter, quote in zip(asked or self._open("text")[:1], self._reading.quotes, strict=False):
            if fits(quote.value, parameter):
                self._keep(parameter, quote)

    def _assign_rest(self) -> None:
        asked = [p for p in self._open("text", "place", "language") if p.required]
        if not asked and not any(p.required for p in self._offer.parameters):
            asked = [p for p in self._open("text") if QUERIES.intersection(p.words)][:1]
        found = rest(self._reading, self._offer) if len(asked) == 1 else None
        if found is None or not fits(found.value, asked[0]):
            return
        if _SENTENCES.intersection(asked[0].words) or _may_be_a_name(found.value, asked[0]):
            self._keep(asked[0], found)

    def _open(self, *kinds: str) -> list[Parameter]:
        """Parameters of these kinds (of any) that have no value yet."""
        return [p for p in self._offer.parameters if p.name not in self.found and (not kinds or p.kind in kinds)]

    def _keep(self, parameter: Parameter, found: Found) -> None:
        self.found[parameter.name] = as_asked(found.value, parameter)
        lead = _LEAD.search(self.left[: found.start])
        self._reading.strike(lead.start() if lead else found.start, found.end)

    def _typed(self, parameter: Parameter, text: str) -> Any:
        """A value that was written behind the parameter's name."""
        if parameter.kind in ("array", "object"):
            return None
        if parameter.kind == "boolean":
            return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
        if parameter.kind == "enum":
            members = members_in(text, parameter.schema["enum"])
            return members[0].value if len(members) == 1 else None
        numbers = numbers_in(text) if parameter.kind == "number" else []
        value = numbers[0].value if len(numbers) == 1 else None if parameter.kind == "number" else text
        return as_asked(value, parameter) if value is not None and fits(value, parameter) else None


def _means(text: str, words: set[str]) -> set[str]:
    """Those of the words a text stands for: `recursively` for `recursive`."""
    terms = terms_of(text)
    return {word for word in words if word in terms or (len(word) >= 5 and any(t.startswith(word) for t in terms))}


def _may_be_a_name(text: str, parameter: Parameter) -> bool:
    if len(text.split()) > _LONGEST_NAME or _NO_NAME.search(text):
        return False
    return parameter.kind == "text" or re.match("[A-Z\u4e00-\u9fff]", text) is not None


def _expressions(reading: Reading, parameter: Parameter) -> list[Found]:
    quoted = [quote for quote in reading.quotes if expression_in(str(quote.value)) is not None]
    found = expression_in(reading.unquoted)
    return quoted or ([found] if found is not None else [])


def _patterns(reading: Reading, parameter: Parameter) -> list[Found]:
    pattern = parameter.schema.get("pattern")
    return matching(pattern, reading.left) if isinstance(pattern, str) else []


_FINDERS: dict[str, Callable[[Reading, Parameter], list[Found]]] = {
    "url": lambda reading, parameter: urls_in(reading.left),
    "email": lambda reading, parameter: emails_in(reading.left),
    "pattern": _patterns,
    "zone": lambda reading, parameter: zones_in(reading.unquoted),
    "language": lambda reading, parameter: languages_in(reading.unquoted),
    "currency": lambda reading, parameter: currencies_in(reading.unquoted),
    "expression": _expressions,
    "path": lambda reading, parameter: paths_in(reading.left),
}
_SENTENCES = QUERIES | BODIES | TITLES - {"name"}
"""Words of parameters that may be whole sentences."""
_TELLING = frozenset({"expression", "zone", "currency", "language"})
"""Kinds whose values say by themselves what a question is about."""
