"""Chooses a tool for a step, with a confidence.

A tool is chosen if the words of the step that are not arguments are words of its name and description. Unknown words
count against it, and one weak word is not enough: a tool may do things that cannot be undone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferrule.catalog.tags import DEFAULT_TABLE
from ferrule.core.patterns import lazy_pattern
from ferrule.models.offline.argument_filling import FilledTool, fill_parameters
from ferrule.models.offline.expressions import find_expression
from ferrule.models.offline.tools import OfferedTool, OfferedTools
from ferrule.models.offline.values import (
    CHINESE_RUN,
    MASK,
    Sentence,
    remove_generic_chinese,
    replace_question_words,
    significant_terms,
)
from ferrule.texts.language import begins_with_cjk
from ferrule.texts.numbers import find_numbers
from ferrule.texts.phrases import DATA_FILE, find_tool_phrases

MIN_CONFIDENCE = 0.55
"""From here on a tool is called."""
_MIN_POSSIBLE_CONFIDENCE = 0.3
"""From here on a tool is named in a refusal."""
_CERTAIN_CONFIDENCE = 0.95
_NEARLY_EQUAL_SHARE = 0.75
"""A tool with less than this part of the best one's confidence is not preferred to it."""
_PARAMETER_WORD_WEIGHT = 0.4
"""The weight of a word that only a parameter's name or description contains."""
_ONLY_VALUES_CONFIDENCE = 0.8
"""The confidence for a question that consists of nothing but values of the tool's kinds."""
_NAME_WEIGHT = 0.65
"""How much of the confidence depends on the words of the tool's name."""
_MIN_STEM_LENGTH = 5
"""Letters that two words with one meaning have in common at their beginning."""
_MIN_CONFIDENCE_TO_ASK = 0.7
"""From here on the missing arguments of a tool are asked for."""
_ASKS_FOR_NUMBER = lazy_pattern(r"%|\b(?:how (?:much|many)|what|which|is)\b|多少|几|哪", re.IGNORECASE)
_LEFT_OVER = lazy_pattern(r"[\d()]|[-+*/^×÷=<>√]\s*\d")
MAX_STEP_LENGTH = 1_000
"""Characters outside quotes: a longer text is not a request whose words can be compared."""
_MAX_CANDIDATES = 8
_DATA_QUERY_TERMS = frozenset({"sql", "data", "file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTool:
    tool: OfferedTool
    filled: FilledTool
    confidence: float
    """From 0 to 1."""
    answer_key: str = ""
    """Which part of the result was asked for; see `ferrule.texts.answers`."""

    @property
    def is_ready(self) -> bool:
        """Return whether it can be called with the arguments there are."""
        return not self.filled.missing and all(map(self.tool.accepts, self.filled.calls))


def choose_tool(tools: OfferedTools, text: str, *, min_confidence: float = MIN_CONFIDENCE) -> ChosenTool | None:
    """Return the tool that a text asks for; None if that is not certain enough. It may lack arguments."""
    if len(Sentence(text).unquoted.replace(MASK, "")) > MAX_STEP_LENGTH:
        return None
    phrase = _match_phrase(tools, text)
    if phrase is not None:
        return phrase
    choices = [choice for choice in _rank_tools(tools, text) if choice.confidence >= min_confidence]
    choices = [c for c in choices if c.is_ready or (c.filled.missing and c.confidence >= _MIN_CONFIDENCE_TO_ASK)]
    # Of tools that fit about equally well, one that has all its arguments is preferred.
    ready = [c for c in choices if c.is_ready and c.confidence >= choices[0].confidence * _NEARLY_EQUAL_SHARE]
    if len(ready) > 1 and ready[0].confidence == ready[1].confidence < _CERTAIN_CONFIDENCE:
        return None  # it could be either, and one of them may do harm
    return next(iter(ready or choices), None)


def _match_phrase(tools: OfferedTools, text: str) -> ChosenTool | None:
    """Return the bundled tool that a text asks for in words that are known."""
    for name, key, arguments in find_tool_phrases(text):
        tool = tools.by_name.get(name)
        if tool is None:
            continue
        if "text" in arguments:
            whole = text[text.index(arguments["text"]) :].strip()
            quotes = Sentence(whole).quotes
            is_quoted = len(quotes) == 1 and quotes[0].end - quotes[0].start == len(whole)
            arguments["text"] = quotes[0].value if is_quoted else whole
        filled = FilledTool(tool, text)
        filled.arguments = arguments
        filled.fill_answer_language()
        choice = ChosenTool(tool=tool, filled=filled, confidence=1.0, answer_key=key)
        if choice.is_ready and arguments.keys() <= {parameter.name for parameter in tool.parameters}:
            return choice
    return None


def find_possible_tool(tools: OfferedTools, text: str) -> OfferedTool | None:
    """Return the tool with which a language model could answer a text that is not understood here."""
    if len(text) > MAX_STEP_LENGTH:
        return None
    if tools.calculators and len(find_numbers(text)) > 1 and _ASKS_FOR_NUMBER.search(text):
        return tools.calculators[0]
    querying = (tool for tool in tools.by_name.values() if tool.terms >= _DATA_QUERY_TERMS)
    if DATA_FILE.search(text) and (tool := next(querying, None)):
        return tool
    best = next(iter(_rank_tools(tools, text)), None)
    return best.tool if best is not None and best.confidence >= _MIN_POSSIBLE_CONFIDENCE else None


def _rank_tools(tools: OfferedTools, text: str) -> list[ChosenTool]:
    text = replace_question_words(text)
    candidates = tools.search(text, _MAX_CANDIDATES)
    by_kind = tools.calculators if find_expression(text) is not None else []
    candidates += [tool for tool in by_kind[:_MAX_CANDIDATES] if tool not in candidates]
    choices = []
    for tool in candidates:
        filled = fill_parameters(tool, text)
        choices.append(ChosenTool(tool=tool, filled=filled, confidence=_compute_confidence(tool, filled)))
    return sorted(choices, key=lambda choice: (-choice.confidence, bool(choice.filled.missing)))


def _compute_confidence(tool: OfferedTool, filled: FilledTool) -> float:
    rest = filled.sentence.rest.replace(MASK, " ")
    english, chinese = _compare_english(tool, rest), _compare_chinese(tool, rest)
    matching, count = english.matching + chinese.matching, english.count + chinese.count
    matched = english.terms | chinese.terms
    is_calculation = filled.telling_values > 0 and tool.takes("expression")
    if is_calculation and filled.expression is not None:
        # Zero where words, numbers or operators are left over: the result would be that of another calculation.
        is_complete = count <= matching and not find_numbers(rest) and not _LEFT_OVER.search(rest)
        return _ONLY_VALUES_CONFIDENCE if is_complete else 0.0
    if not count:
        only_values = filled.telling_values and not filled.missing
        return _ONLY_VALUES_CONFIDENCE if only_values and (filled.telling_values > 1 or is_calculation) else 0.0
    if not matched and not is_calculation:
        return 0.0
    if not any(p.is_required for p in tool.parameters) and find_numbers(rest):
        return 0.0  # `3.99 times 12` does not ask for the time
    matched_name = [term for term in tool.name_terms if any(_share_stem(term, other) for other in matched)]
    name_share = len(matched_name) / len(tool.name_terms) if tool.name_terms else 1.0
    # Several words of the description are worth half the name, and so is a value that was recognized by its form.
    if name_share < 0.5 and (len(matched) > 1 or filled.has_recognized_value):
        name_share = 0.5
    if name_share < 1.0 and not filled.has_recognized_value and not any(p.is_required for p in tool.parameters):
        name_share /= 2  # there is no other evidence for the tool
    return matching / count * (1 - _NAME_WEIGHT + _NAME_WEIGHT * name_share)


@dataclass(frozen=True, slots=True)
class _WordComparison:
    """How many of the significant words of a text a tool knows, how many there are, and which of its terms match."""

    matching: float
    count: float
    terms: set[str]


def _compare_english(tool: OfferedTool, text: str) -> _WordComparison:
    matching, count = 0.0, 0
    matched: set[str] = set()
    for word in re.findall(r"[A-Za-z][\w'’-]*|\d[\w.-]*", text):
        terms = [term for term in significant_terms(word) if not begins_with_cjk(term)]
        if not terms:
            continue
        count += 1
        own = {match for term in terms if (match := _matching_term(term, tool))}
        matched |= own
        if own:
            matching += 1
        elif tool.parameter_terms.intersection(terms):
            matching += _PARAMETER_WORD_WEIGHT
    return _WordComparison(matching, count, matched)


def _matching_term(term: str, tool: OfferedTool) -> str:
    """Return the term of a tool that a word stands for; `#word` if they only have a tag in common."""
    if term in tool.terms:
        return term
    alike = next((other for other in tool.terms if _share_stem(term, other)), "")
    return alike or (f"#{term}" if tool.tags.intersection(DEFAULT_TABLE.tags_in([term])[:1]) else "")


def _share_stem(first: str, second: str) -> bool:
    """`remind` matches a tool with the word `reminder`."""
    if first == second:
        return True
    short, long = sorted((first, second), key=len)
    return len(short) >= _MIN_STEM_LENGTH and short.isalpha() and short.isascii() and long.startswith(short)


def _compare_chinese(tool: OfferedTool, text: str) -> _WordComparison:
    """Count pairs of characters, because Chinese has no spaces between words."""
    matching = count = 0.0
    matched: set[str] = set()
    for run in CHINESE_RUN.findall(text):
        words = [word for word in tool.chinese_words if word in run]
        matched.update(tool.chinese_words[word] for word in words)
        # Words may overlap: 火车票 contains 火车 and 车票.
        covered = {at for word in words for m in re.finditer(re.escape(word), run) for at in range(*m.span())}
        rest = "".join(MASK if at in covered else char for at, char in enumerate(run))
        unknown = [part for piece in rest.split(MASK) if piece for part in remove_generic_chinese(piece)]
        matching += len(covered) / 2
        count += (len(covered) + sum(map(len, unknown))) / 2
    return _WordComparison(matching, count, matched)
