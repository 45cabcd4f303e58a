"""Values that are just words: the place after `in`, the text after `saying`, the rest of the sentence."""

from __future__ import annotations

import re

from ferrule.models.offline.catalogue import Offer
from ferrule.models.offline.parameter import BODIES, TITLES, Parameter
from ferrule.models.offline.reading import STRUCK, Found, Reading
from ferrule.models.offline.vocabulary import chinese_runs, is_generic, without_frame
from ferrule.search.words import is_cjk, terms_of

_WORD = re.compile(r"[^\s\0]+")
_PLACE = re.compile(r"\b(in|at|for|near|around|of|from|to|about)\s+(?:the\s+(?:city|town)\s+of\s+)?", re.IGNORECASE)
_NAME_PART = re.compile(r"[^\W\d_][\w'’.-]*")
_ENDS_A_PLACE = frozenset(
    re.findall(
        r"\w+",
        "today tomorrow tonight yesterday now right this next on at in for with please from to by using is are like "
        "and or currently during the a an if when it my of about then me",
    )
)
_BEFORE_PLACES = ("in", "at", "for", "near", "around")
_LONGEST_PLACE = 8
"""Characters of a Chinese one."""
_SHORT_QUESTION = 4
"""Words up to which the first one may be a place: `Paris weather`."""
_ROLES = {"from": ("from",), "to": ("to", "into", "for")}
_TITLE = (
    r"titled|entitled|called|named|with\s+(?:the\s+)?(?:title|name|subject)|标题(?:是|为|叫)?|名为|叫做?|主题(?:是|为)?"
)
_BODY = (
    r"saying(?:\s+that)?|that\s+says|which\s+says|telling\s+(?:him|her|them)(?:\s+that)?"
    r"|with\s+(?:the\s+)?(?:text|message|body|content|description|note)|内容(?:是|为)?|说"
)
_AFTER_MARK = r"\b\s*(?:is\b|of\b|=|:|：|是|为)?\s*"
_END_OF_MARKED = re.compile(
    r"\0|[,;]?\s+(?:and|with)\s+(?:the\s+|a\s+)?(?:title|subject|body|content|text|message|name|description|priority"
    r"|label|tags?)\b|,?\s+(?:saying|titled|called|named)\b|[，；,]\s*(?=(?:标题|内容|主题|正文))|[.?!。？！]\s*\Z|\Z",
    re.IGNORECASE,
)
_LEADS_IN = re.compile(
    r"(?:(?:me|us)[\s\0]+(?:to|that|about)|for|about|of|on|by|that|up|out|:|：|with|the\s+(?:text|message|words?|phrase|string))"
    r"(?:\s+|(?<=[:：]))",
    re.IGNORECASE,
)
_LEADS_OUT = re.compile(
    r"[\s,，]*(?:please|for me|right now|thanks|thank you|now|today|吧|吗|呢|一下|谢谢)?[\s?.!？。！,，]*\Z", re.I
)
_CHINESE_TAIL = re.compile(r"(?:成|为|给|到|的|用|是多少|是什么|怎么样|如何|吗|呢|一下)+\Z")


def marked(reading: Reading, parameter: Parameter) -> Found | None:
    """The text that follows the parameter's name, or a word that stands for it (`titled`, `saying`)."""
    words = {*parameter.words}
    marks = [r"\s+".join(map(re.escape, parameter.words))] if parameter.words else []
    marks += [_TITLE] if words & TITLES else []
    marks += [_BODY] if words & BODIES else []
    for match in re.finditer(rf"(?:(?<![A-Za-z])(?:{'|'.join(marks)})){_AFTER_MARK}", reading.left, re.IGNORECASE):
        end = _END_OF_MARKED.search(reading.left, match.end())
        value = reading.left[match.end() : end.start() if end else None].strip(" ,，:：")
        if value and not (is_generic(value.lower()) or _begins_weakly(value, match.group())):
            quoted = next(
                (
                    q
                    for q in reading.quotes
                    if q.start >= match.end() and not reading.left[match.end() : q.start].strip()
                ),
                None,
            )
            if quoted is not None:
                return Found(quoted.value, match.start(), quoted.end)
            start = reading.left.index(value, match.end())
            return Found(value, match.start(), start + len(value))
    return None


def identifier(reading: Reading, parameter: Parameter) -> Found | None:
    """A word with a digit in it, by the parameter's name if there is one; else the word after the name."""
    said = [word for word in parameter.words if word not in ("id", "number", "no", "code", "key")]
    names = "|".join(map(re.escape, [*said, *parameter.words]))
    by_name = rf"(?<![A-Za-z])(?i:{names})\b(?i:\s+(?:id|number|no\.?|code|#))?\s*(?:is\b|=|:|：|是)?\s*#?"
    coded = r"(?P<value>(?=[\w-]*\d)[A-Za-z0-9][\w-]*|[A-Z]{2,6})(?![\w@/])"
    for pattern in (by_name + coded, rf"(?<![\w.@/])#?{coded}", rf"{by_name}(?P<value>[\w.-]*\w)"):
        match = re.search(pattern, reading.unquoted)
        if match and terms_of(match["value"]) and not is_generic(match["value"].lower()):
            return Found(match["value"], match.start("value"), match.end("value"))
    return None


def places(reading: Reading, offer: Offer, parameter: Parameter) -> list[Found]:
    """Places, by the preposition before them, else by their capital letters."""
    text = reading.unquoted
    wanted = _ROLES.get(parameter.role)
    for match in _PLACE.finditer(text):
        if wanted is None or match.group(1).lower() in wanted:
            found = _names_from(text, match.end(), offer)
            # A name in small letters is taken for a place only where one is likely.
            if found and (match[1].lower() in _BEFORE_PLACES or wanted or found[0].value[0].isupper()):
                return found
    if wanted is not None:
        return _chinese_role(text, parameter.role)
    return _capitalised(text, offer) or _chinese_places(text, offer)


def rest(reading: Reading, offer: Offer) -> Found | None:
    """What is left of the sentence without the words that ask for the tool."""
    left = reading.left
    words = list(_WORD.finditer(left))
    if any(is_cjk(char) for char in left) and not re.search(r"[A-Za-z]{3,}\s+[A-Za-z]{3,}\s+[A-Za-z]", left):
        return _chinese_rest(left, offer)
    start, asked = 0, False
    for word in words:
        terms = terms_of(word.group())
        known = [term for term in terms if term in offer.head_terms or _begins_alike(term, offer.head_terms)]
        if known:
            start, asked = word.end(), True
        elif any(not is_generic(term) for term in terms):
            break
        elif not asked and not re.match(r"[\"'“]", word.group()):
            start = word.end()
    end = _LEADS_OUT.search(left)
    stop = end.start() if end else len(left)
    value = left[start:stop].replace(STRUCK, " ") if start < stop else ""
    begin = start + len(value) - len(value.lstrip())
    if asked:
        if len(left[:start].split()) > 1 and (to := re.compile(r"to\s+").match(left, begin)):
            begin = to.end()  # a reminder to call; but `echo to be` means the words
        while lead := _LEADS_IN.match(left, begin):
            begin = lead.end()
    value = re.sub(r"\s+", " ", left[begin:stop].replace(STRUCK, " ")).strip(" ,:;，：；")
    value = re.sub(r"\s+(?:to|in|into|at|on|for|from|with|and|by)\Z", "", value)
    if not asked:
        value = _without_tail(value, offer)
    return Found(value, begin, stop) if value and any(char.isalnum() for char in value) else None


def _without_tail(value: str, offer: Offer) -> str:
    """`Paris weather` asks for the weather of Paris."""
    words = value.split()
    while len(words) > 1 and all(term in offer.head_terms for term in terms_of(words[-1])) and terms_of(words[-1]):
        words.pop()
    return " ".join(words)


def _names_from(text: str, at: int, offer: Offer) -> list[Found]:
    found: list[Found] = []
    while True:
        end = at
        while word := _NAME_PART.match(text, end):
            if word.group().lower().strip(".") in _ENDS_A_PLACE or offer.name_terms.intersection(
                terms_of(word.group())
            ):
                break
            end = word.end() + (1 if text[word.end() : word.end() + 1] == " " else 0)
        value = text[at:end].rstrip(" .,")
        if not value:
            return found
        state = re.match(r",\s?([A-Z]{2})\b", text[at + len(value) :])
        value += state.group() if state else ""
        found.append(Found(value, at, at + len(value)))
        joined = re.match(r"\s*(?:,\s*and|,|and|&)\s+(?:in\s+|for\s+)?(?=[A-Z])", text[at + len(value) :])
        if joined is None:
            return found
        at = at + len(value) + joined.end()


def _capitalised(text: str, offer: Offer) -> list[Found]:
    for match in re.finditer(r"\b[A-ZÀ-Þ][\w'’-]+(?:\s+[A-ZÀ-Þ][\w'’-]+)*", text):
        words = [w for w in match.group().split() if not all(is_generic(t) or t in offer.terms for t in terms_of(w))]
        value = " ".join(words)
        if match.start() == 0 and len(text.split()) > _SHORT_QUESTION:
            continue
        if value and value in match.group():
            start = match.start() + match.group().index(value)
            return [Found(value, start, start + len(value))]
    return []


def _chinese_role(text: str, role: str) -> list[Found]:
    pattern = (
        r"从([\u4e00-\u9fff]{2,6}?)(?=[到去飞至]|\Z|的)"
        if role == "from"
        else r"[到去往至]([\u4e00-\u9fff]{2,6}?)(?=[的，。？]|\Z|机票|航班|票)"
    )
    match = re.search(pattern, text)
    return [Found(match[1], match.start(1), match.end(1))] if match else []


def _chinese_places(text: str, offer: Offer) -> list[Found]:
    """The first place of a text, and those that are joined to it: 北京、上海和广州."""
    found: list[Found] = []
    asked = _asked_words(offer)
    for run in chinese_runs(text):
        for piece in asked.split(run.group()):
            for part in without_frame(piece):
                for place in re.split("[和与]", part):
                    at = text.index(place, run.start())
                    joined = not found or re.fullmatch("[、，,和与]", text[found[-1].end : at])
                    if 2 <= len(place) <= _LONGEST_PLACE and joined:
                        found.append(Found(place, at, at + len(place)))
    return found


def _chinese_rest(left: str, offer: Offer) -> Found | None:
    value = left.replace(STRUCK, " ").strip(" ,，。？?！!：:；;\n")
    asked = _asked_words(offer)
    while True:
        frame = without_frame(value)
        head = value.index(frame[0]) if frame and value.find(frame[0]) >= 0 else 0
        shorter = value[head:] if re.match("[\u4e00-\u9fff]", value) else value
        match = asked.match(shorter)
        shorter = shorter[match.end() :] if match and match.end() else shorter
        shorter = _CHINESE_TAIL.sub("", shorter.strip(" ,，。：:"))
        tail = re.search(rf"(?:{asked.pattern})\Z", shorter) if asked.pattern != "(?!)" else None
        shorter = shorter[: tail.start()] if tail and tail.start() else shorter
        if shorter == value:
            break
        value = shorter
    value = value.strip()
    at = left.find(value)
    return Found(value, at, at + len(value)) if value and at >= 0 and any(c.isalnum() for c in value) else None


def _asked_words(offer: Offer) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, offer.chinese_words)) or "(?!)")


def _begins_weakly(value: str, mark: str) -> bool:
    """`the message to Bob`: what follows the name is not the value."""
    if re.search(r"[=:：是为]\s*\Z|is\s*\Z|saying|titled|called|named|with", mark):
        return False
    return bool(re.match(r"(?:to|from|for|in|on|at|of|about|and|that|by|with|from|via)\b|[?.!]", value, re.IGNORECASE))


def _begins_alike(term: str, known: frozenset[str]) -> bool:
    """`remind` asks for a `reminder`."""
    if len(term) < 5 or not term.isalpha():
        return False
    return any(len(other) >= 5 and (other.startswith(term) or term.startswith(other)) for other in known)
