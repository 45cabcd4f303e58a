"""Fills the parameters of a tool from the words of a question.

Values that are recognized by their form come first (an address, a member of an enum), then numbers, then text; what was
used is masked. Of two values of one kind each parameter gets the one next to its name, or after its preposition
(`from`, `to`); the others are assigned in order. Optional parameters are filled only if the question mentions them.
Nothing is invented: a value that is not in the question is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.patterns import lazy_pattern
from ferrule.models.offline.expressions import ExpressionSpan, find_expression
from ferrule.models.offline.tools import BODY_WORDS, QUERY_WORDS, TITLE_WORDS, OfferedParameter, OfferedTool
from ferrule.models.offline.values import (
    CHINESE_GENERIC,
    CHINESE_LEADING,
    CHINESE_TRAILING,
    CODE,
    DATE,
    EMAIL,
    MASK,
    Sentence,
    find_enum_members,
    find_matching_words,
    find_paths,
    find_spans,
    find_urls,
    is_generic,
)
from ferrule.texts.language import contains_chinese, detect_language
from ferrule.texts.numbers import ValueSpan, find_numbers
from ferrule.texts.time_zones import find_time_zones_in_text

# ---- free text: an order number, the place after `from`, the rest of the sentence

_PLACE_BY_ROLE = {
    "from": lazy_pattern(r"\bfrom\s+((?:[A-ZÀ-Þ][\w'’.-]*\s?)+)|从([\u4e00-\u9fff]{2,6}?)(?=[到去飞至]|\Z|的)"),
    "to": lazy_pattern(
        r"\b(?:to|into|for)\s+((?:[A-ZÀ-Þ][\w'’.-]*\s?)+)|[到去往至]([\u4e00-\u9fff]{2,6}?)(?=[的，。？]|\Z)"
    ),
}
_BEFORE_CONTENT = frozenset("for about of on by that up out with in at saying".split())
_PHRASE_BEFORE_CONTENT = lazy_pattern(
    r"(?:me|us)[\s\0]+(?:to|that|about)\s+|the\s+(?:text|message|words?|phrase|string)\s+|[:：]\s*", re.IGNORECASE
)
_POLITE_END = lazy_pattern(
    r"[\s,，]*(?:please|for me|right now|thanks|thank you|now|today)?[\s?.!？。！,，]*\Z", re.IGNORECASE
)
_PREPOSITION_END = lazy_pattern(r"\s+(?:to|in|into|at|on|for|from|with|and|by)\Z")
_MIN_COMMON_PREFIX = 5


def find_identifier(sentence: Sentence, parameter: OfferedParameter) -> ValueSpan | None:
    """Return a word with a digit in it, best after the parameter's name; else any word after the name."""
    nouns = [word for word in parameter.words if word not in ("id", "number", "no", "code", "key")]
    names = "|".join(map(re.escape, [*nouns, *parameter.words]))
    after_name = rf"(?<![A-Za-z])(?i:{names})\b(?i:\s+(?:id|number|no\.?|code|#))?\s*(?:is\b|=|:|：|是)?\s*#?"
    coded = r"(?P<value>(?=[\w-]*\d)[A-Za-z0-9][\w-]*|[A-Z]{2,6})(?![\w@/])"
    for pattern in (after_name + coded, rf"(?<![\w.@/])#?{coded}", rf"{after_name}(?P<value>[\w.-]*\w)"):
        match = re.search(pattern, sentence.unquoted)
        if match and extract_terms(match["value"]) and not is_generic(match["value"].lower()):
            return ValueSpan(match["value"], *match.span("value"))
    return None


def find_place_by_role(sentence: Sentence, parameter: OfferedParameter) -> ValueSpan | None:
    """`from Berlin`, `to Madrid`, 从北京, 到上海."""
    match = _PLACE_BY_ROLE[parameter.role].search(sentence.unquoted) if parameter.role else None
    if match is None:
        return None
    group = 1 if match[1] else 2
    return ValueSpan(match[group].strip(), match.start(group), match.start(group) + len(match[group].rstrip()))


def find_remaining_text(sentence: Sentence, tool: OfferedTool) -> ValueSpan | None:
    """Return the rest of the sentence without the words that ask for the tool, at its beginning and at its end."""
    rest = sentence.rest
    is_chinese = contains_chinese(rest) and not re.search(r"[A-Za-z]{3,}\s+[A-Za-z]{3,}\s+[A-Za-z]", rest)
    start, end = (_chinese_bounds if is_chinese else _english_bounds)(rest, tool)
    value = re.sub(r"\s+", " ", rest[start:end].replace(MASK, " ")).strip(" ,:;，：；")
    value = _PREPOSITION_END.sub("", value)
    start += len(rest[start:end]) - len(rest[start:end].lstrip(" \0"))
    return ValueSpan(value, start, end) if any(char.isalnum() for char in value) else None


def _english_bounds(rest: str, tool: OfferedTool) -> tuple[int, int]:
    start, is_tool_named = 0, False
    words = list(re.finditer(r"[^\s\0]+", rest))
    for word in words:
        terms = extract_terms(word.group())
        if any(_names_tool(term, tool) for term in terms):
            start, is_tool_named = word.end(), True
        elif any(not is_generic(term) for term in terms):
            break
        elif not is_tool_named and not re.match(r"[\"'“]", word.group()):
            start = word.end()
    polite = _POLITE_END.search(rest)
    end = polite.start() if polite else len(rest)
    if is_tool_named:
        return _skip_prepositions(rest, start), end
    while words and words[-1].start() > end:
        words.pop()
    # `Paris weather` asks for the weather of Paris.
    while len(words) > 1 and words[-1].start() > start and (terms := extract_terms(words[-1].group())):
        if not all(term in tool.request_terms for term in terms):
            break
        end = words.pop().start()
    return start, end


def _skip_prepositions(rest: str, start: int) -> int:
    """Skip `for`, `me to`, `the text` after the words that ask for a tool; not the `to` of `echo to be`."""
    may_skip_to = len(rest[:start].split()) > 1
    while True:
        start += len(rest[start:]) - len(rest[start:].lstrip(" \0\t\n"))
        word = re.compile(r"[a-z]+(?=\s)", re.IGNORECASE).match(rest, start)
        phrase = _PHRASE_BEFORE_CONTENT.match(rest, start)
        if phrase is not None:
            start = phrase.end()
        elif word is not None and (word.group().lower() in _BEFORE_CONTENT or (word[0] == "to" and may_skip_to)):
            start = word.end()
        else:
            return start


def _chinese_bounds(rest: str, tool: OfferedTool) -> tuple[int, int]:
    words = "|".join(map(re.escape, tool.chinese_words)) or "(?!)"
    space = r"[\s\0,，。？?！!：:；;]"
    start = re.compile(rf"(?:{words}|{CHINESE_GENERIC}|[{CHINESE_LEADING}]|{space})*").match(rest)
    end = re.compile(rf"(?:{words}|{CHINESE_GENERIC}|[{CHINESE_TRAILING}]|{space})*\Z").search(rest)
    begin = start.end() if start else 0
    return begin, max(begin, end.start() if end else len(rest))


def _names_tool(term: str, tool: OfferedTool) -> bool:
    """Return whether a word asks for the tool; `remind` asks for a `reminder`."""
    if term in tool.request_terms:
        return True
    if len(term) < _MIN_COMMON_PREFIX or not term.isalpha():
        return False
    return any(
        len(head) >= _MIN_COMMON_PREFIX and (head.startswith(term) or term.startswith(head))
        for head in tool.request_terms
    )


_PREPOSITION = lazy_pattern(
    r"(?:\b(?:in|at|on|for|to|from|into|by|of|as|with|until|and)|[从到在给于])\s*\Z", re.IGNORECASE
)
_POSITIONAL_KINDS = ("text", "place", "id", "object", "array", "boolean")
"""Kinds whose values are recognized only by their position in the sentence, or by their name."""
_TELLING_KINDS = ("expression", "zone")
"""Kinds whose values show by themselves what a question is about."""
_ANSWER_LANGUAGE = lazy_pattern(r"\blanguage of the (?:answer|reply|output)\b|(?:回答|答复|输出)的?语言", re.IGNORECASE)
_ROLE_PREPOSITIONS = {"from": r"(?:\bfrom|\bof|从|由)\s*\Z", "to": r"(?:\bto|\binto|\bin|\btowards|到|成|为|给)\s*\Z"}
_UNIT = lazy_pattern(r"\s*-?([A-Za-z]+|[\u4e00-\u9fff]{1,2})")
_ITEM_SEPARATOR = lazy_pattern(r"\s*(?:,\s*and\b|,|，|、|\band\b|和|与)\s*")
_PLACE_PREPOSITION = lazy_pattern(r"\b(?:in|at|for|near|around)\s+\Z", re.IGNORECASE)
_MAX_NAME_WORDS = 4
_NOT_A_NAME = lazy_pattern(
    r"\b(?:this|that|these|those|same|who|which|previous|is|are|was|be|should|would|can|could|will|with|from|for|and|if"
    r"|using|based|such|it|i|my|your|their)\b",
    re.IGNORECASE,
)
_SENTENCE_WORDS = QUERY_WORDS | BODY_WORDS | TITLE_WORDS - {"name"}
"""Words in names of parameters whose values may be whole sentences."""


class FilledTool:
    """The arguments that a text gives for a tool. One method for each kind of value, in the order of `fill`."""

    def __init__(self, tool: OfferedTool, text: str) -> None:
        self._tool, self.sentence = tool, Sentence(text)
        self.arguments: dict[str, Any] = {}
        self.alternatives: list[dict[str, Any]] = []
        """If the question names several places or zones: the arguments in which the calls differ."""
        self.telling_values = 0
        """How many values show by themselves what the question is about."""
        self.expression: ExpressionSpan | None = None
        """The arithmetic among the values."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Return one set of arguments, or one for each place that the question names."""
        return [{**self.arguments, **extra} for extra in self.alternatives] or [self.arguments]

    @property
    def missing(self) -> list[OfferedParameter]:
        """Return the parameters that are required, and not in the question."""
        return [p for p in self._open_parameters() if p.is_required and "default" not in p.schema]

    @property
    def has_recognized_value(self) -> bool:
        """Return whether a required value was recognized by its form and not only by its position."""
        recognizable = (p for p in self._tool.parameters if p.is_required and p.kind not in _POSITIONAL_KINDS)
        return any(p.name in self.arguments for p in recognizable)

    def fill(self) -> None:
        self._fill_by_name()
        self._fill_by_form()
        self._fill_enums()
        self._fill_numbers()
        self._fill_texts()
        self.fill_answer_language()

    def _fill_by_name(self) -> None:
        """`city=Paris`, `"limit": 5`."""
        for parameter in self._open_parameters():
            match = re.search(
                rf"(?<![\w.]){re.escape(parameter.name)}[\"']?\s*(?:=|[:：]\s)\s*(\"[^\"]*\"|'[^']*'|[^\s,;，；。\0]+)",
                self.sentence.rest,
            )
            value = _parse_value(parameter, match[1].strip("\"'")) if match is not None else None
            if match is not None and value is not None:
                self.arguments[parameter.name] = value
                self.sentence.mask(*match.span())

    def _fill_by_form(self) -> None:
        for kind, find in _FINDERS.items():
            parameters = self._open_parameters(kind)
            if parameters:
                count = self._assign_values(parameters, find(self.sentence, parameters[0]))
                self.telling_values += count if kind in _TELLING_KINDS else 0

    def _fill_enums(self) -> None:
        for parameter in self._open_parameters("enum"):
            members = find_enum_members(self.sentence.rest, parameter.schema["enum"])
            # The words that ask for the tool may be members by chance: `search` of a tool called search.
            own = [m for m in members if not self._tool.name_terms.issuperset(extract_terms(str(m.value)))] or members
            if len({str(member.value) for member in own}) > 1:
                own = [member for member in own if self._assignment_strength(member, parameter)] or own
            if own:
                self._set_argument(parameter, self._extend_over_name(own[0], parameter))

    def _fill_numbers(self) -> None:
        """Fill optional parameters with numbers beside their name or unit only, required ones also in order."""
        self._assign_values(self._open_parameters("number"), find_numbers(self.sentence.unquoted), in_order=False)
        required = [parameter for parameter in self._open_parameters("number") if parameter.is_required]
        self._assign_values(required, find_numbers(self.sentence.unquoted))

    def _fill_texts(self) -> None:
        for parameter in self._open_parameters("id"):
            value = find_identifier(self.sentence, parameter)
            if value is not None and (parameter.is_required or self._assignment_strength(value, parameter)):
                self._set_argument(parameter, value)
        for parameter in self._open_parameters("place"):
            value = find_place_by_role(self.sentence, parameter)
            if value is not None:
                self._set_argument(parameter, value)
        required = [p for p in self._open_parameters("text", "path", "id", "place", "pattern", "code") if p.is_required]
        self._assign_values(required or self._open_parameters("text")[:1], self.sentence.quotes)
        self._fill_remaining_text()

    def _fill_remaining_text(self) -> None:
        """Give the rest of the sentence to the one open text parameter, if that can be its value."""
        parameters = [p for p in self._open_parameters("text", "place") if p.is_required]
        if not parameters and not any(p.is_required for p in self._tool.parameters):
            parameters = [p for p in self._open_parameters("text") if QUERY_WORDS.intersection(p.words)][:1]
        value = find_remaining_text(self.sentence, self._tool) if len(parameters) == 1 else None
        if value is None:
            return
        if parameters[0].kind == "place":
            self._set_places(parameters[0], value)
        elif _SENTENCE_WORDS.intersection(parameters[0].words) or _may_be_name(value.value):
            self._set_argument(parameters[0], value)

    def _set_places(self, parameter: OfferedParameter, text: ValueSpan) -> None:
        """`Paris and London` are two calls. Names in lower case count only after a preposition."""
        places, start = [], text.start
        for name in _ITEM_SEPARATOR.split(self.sentence.rest[text.start : text.end]):
            start = self.sentence.rest.index(name, start)
            follows = _PLACE_PREPOSITION.search(self.sentence.rest[:start]) is not None
            is_name = re.match("[A-ZÀ-Þ\u4e00-\u9fff]", name) is not None or follows
            if not name or not is_name or not _may_be_name(name):
                break
            places.append(ValueSpan(name.strip(" .?!\0"), start, start + len(name)))
        for place in places:
            self._set_argument(parameter, place)
        if len(places) > 1:
            self.alternatives = [{parameter.name: place.value} for place in places]

    def fill_answer_language(self) -> None:
        """Ask for an answer in Chinese if the question is in Chinese and the tool has a parameter for that."""
        for parameter in self._open_parameters("code"):
            if _ANSWER_LANGUAGE.search(parameter.description) and detect_language(self.sentence.text) == "zh":
                self.arguments[parameter.name] = "zh"

    def _assign_values(
        self, parameters: list[OfferedParameter], values: list[ValueSpan], *, in_order: bool = True
    ) -> int:
        """Assign values of one kind to the parameters of that kind; how many got one."""
        open_values, before = list(values), len(self.arguments)
        pairs = [
            (self._assignment_strength(value, parameter), parameter, value)
            for parameter in parameters
            for value in values
        ]
        for nearness, parameter, value in sorted(pairs, key=lambda pair: -pair[0]):
            is_open = value in open_values and parameter.name not in self.arguments
            if nearness and is_open and self._set_argument(parameter, self._extend_over_name(value, parameter)):
                open_values.remove(value)
        for parameter in parameters if in_order else ():
            fitting = next((value for value in open_values if parameter.convert(value.value) is not None), None)
            if fitting is not None and parameter.name not in self.arguments:
                self._set_argument(parameter, fitting)
                open_values.remove(fitting)
        if open_values and len(parameters) == 1 and parameters[0].kind == "zone":
            self.alternatives = [{parameters[0].name: value.value} for value in values]
            for value in open_values:
                self.sentence.mask(value.start, value.end)
        return len(self.arguments) - before

    def _open_parameters(self, *kinds: str) -> list[OfferedParameter]:
        """Parameters of these kinds (of any) that have no value yet."""
        return [p for p in self._tool.parameters if p.name not in self.arguments and (not kinds or p.kind in kinds)]

    def _set_argument(self, parameter: OfferedParameter, value: ValueSpan) -> bool:
        converted = parameter.convert(value.value)
        if converted is None:
            return False
        self.arguments[parameter.name] = converted
        if isinstance(value, ExpressionSpan):
            self.expression = value
        preposition = _PREPOSITION.search(self.sentence.rest[: value.start])
        self.sentence.mask(preposition.start() if preposition else value.start, value.end)
        return True

    def _assignment_strength(self, value: ValueSpan, parameter: OfferedParameter) -> int:
        """Rate how clearly the sentence assigns a value to a parameter by name, preposition or unit; 0 = not at all."""
        before, after = self.sentence.text[: value.start], self.sentence.text[value.end :]
        if _find_name_before(parameter, before):
            return 3
        if parameter.role and re.search(_ROLE_PREPOSITIONS[parameter.role], before, re.IGNORECASE):
            return 2
        unit = _UNIT.match(after)
        if unit and parameter.kind == "number":
            words = {*extract_terms(parameter.name), *extract_terms(parameter.description)}
            return int(
                bool({*extract_terms(unit[1])} & words or (len(unit[1]) <= 2 and unit[1] in parameter.description))
            )
        return 0

    def _extend_over_name(self, value: ValueSpan, parameter: OfferedParameter) -> ValueSpan:
        """Return a value together with the parameter's name beside it, which is used with it."""
        text = self.sentence.rest
        name = _find_name_before(parameter, text[: value.start])
        unit = _UNIT.match(text, value.end)
        end = unit.end() if unit and {*extract_terms(unit[1])} & {*extract_terms(parameter.name)} else value.end
        return ValueSpan(value.value, name.start() if name else value.start, end)


def _find_name_before(parameter: OfferedParameter, before: str) -> re.Match[str] | None:
    name = r"[\s_-]*".join(map(re.escape, parameter.words))
    last = re.escape(parameter.words[-1]) if parameter.words else "(?!)"
    pattern = rf"(?<![A-Za-z])(?:{name}|{last})\s*(?:is|of|=|:|：|to|as|是|为)?\s*[\"'“]?\Z"
    return re.search(pattern, before, re.IGNORECASE)


def _parse_value(parameter: OfferedParameter, text: str) -> Any:
    """Return a value that was written after the parameter's name."""
    if parameter.kind in ("array", "object"):
        return None
    if parameter.kind == "boolean":
        return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
    if parameter.kind == "enum":
        members = find_enum_members(text, parameter.schema["enum"])
        return members[0].value if len(members) == 1 else None
    if parameter.kind == "number":
        numbers = find_numbers(text)
        return parameter.convert(numbers[0].value) if len(numbers) == 1 else None
    return parameter.convert(text)


def _may_be_name(text: str) -> bool:
    return len(text.split()) <= _MAX_NAME_WORDS and not _NOT_A_NAME.search(text)


def _find_expressions(sentence: Sentence, parameter: OfferedParameter) -> list[ValueSpan]:
    quoted = [quote for quote in sentence.quotes if find_expression(str(quote.value)) is not None]
    expression = find_expression(sentence.unquoted)
    return quoted or ([expression] if expression is not None else [])


def _find_zones(sentence: Sentence, parameter: OfferedParameter) -> list[ValueSpan]:
    """IANA names, or the places as they are written if the parameter takes cities."""
    zones = find_time_zones_in_text(sentence.unquoted)
    takes_cities = re.search(r"\bcity\b|城市", parameter.description, re.IGNORECASE)
    return [replace(zone, value=sentence.text[zone.start : zone.end]) for zone in zones] if takes_cities else zones


_FINDERS: dict[str, Callable[[Sentence, OfferedParameter], list[ValueSpan]]] = {
    "url": lambda sentence, parameter: find_urls(sentence.rest),
    "email": lambda sentence, parameter: find_spans(EMAIL, sentence.rest),
    "pattern": lambda sentence, parameter: find_matching_words(parameter.schema.get("pattern"), sentence.rest),
    "zone": _find_zones,
    "code": lambda sentence, parameter: find_spans(CODE, sentence.unquoted),
    "date": lambda sentence, parameter: find_spans(DATE, sentence.unquoted),
    "expression": _find_expressions,
    "path": lambda sentence, parameter: find_paths(sentence.rest),
}


def fill_parameters(tool: OfferedTool, text: str) -> FilledTool:
    """Return the arguments for a tool that a text gives."""
    filled = FilledTool(tool, text)
    filled.fill()
    return filled
