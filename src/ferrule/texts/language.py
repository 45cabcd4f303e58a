"""English and Chinese: which of the two a text is in, and the texts of prompts and messages in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypeVar

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError

T = TypeVar("T")

Language: TypeAlias = Literal["en", "zh"]

HAN: Final = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese characters, for use inside the brackets of a regular expression."""
CJK: Final = r"\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of Chinese, Japanese and Korean, which write no spaces between words; likewise."""

_HAN = lazy_pattern(f"[{HAN}]")
SPACE_BESIDE_CHINESE: Final = lazy_pattern(rf"(?<=[{HAN}]) | (?=[{HAN}])")
"""Many write `3 天后`; the spaces mean nothing."""
_CJK = lazy_pattern(f"[{CJK}]")
_KANA_OR_HANGUL = lazy_pattern(r"[\u3040-\u30ff\uac00-\ud7af]")
_LATIN_WORD = lazy_pattern(r"[A-Za-z][\w'-]*")
_PATH = r"(?<![A-Za-z0-9_])[A-Za-z0-9_~@%+*-]{0,100}(?:[./]{1,3}[A-Za-z0-9_~@%+*-]{1,100})+"
_QUOTED = lazy_pattern(
    rf"[a-z]+://\S{{1,2000}}|{_PATH}|\"[^\"\n]{{1,500}}\"|“[^”\n]{{1,500}}”|「[^」\n]{{1,500}}」|`[^`\n]{{1,500}}`"
)
_MAX_LENGTH = 5000


def detect_language(text: str) -> Language:
    """`zh` where at least half of the words are Chinese, each character counting as a word; else `en`.

    Addresses, paths and quotations do not count: they are not the author's own words.
    """
    if text.isascii():
        return "en"
    own_words = _QUOTED.sub(" ", text[:_MAX_LENGTH])
    han, latin = len(_HAN.findall(own_words)), len(_LATIN_WORD.findall(own_words))
    return "zh" if han and han >= latin and han > len(_KANA_OR_HANGUL.findall(own_words)) else "en"


def get_texts(language: str, texts: Mapping[str, T], subject: str) -> T:
    """Return the texts of a language out of a table; the SetupError for another one names the subject."""
    try:
        return texts[language]
    except KeyError:
        supported = ", ".join(map(repr, texts))
        hint = did_you_mean(language, texts)
        raise SetupError(f"{subject} are not available in {language!r}; use one of {supported}.{hint}") from None


def contains_chinese(text: str) -> bool:
    """Return whether there is a Chinese character anywhere in a text: for short texts, where one is enough to tell."""
    return _HAN.search(text) is not None


def begins_with_cjk(text: str) -> bool:
    """Return whether a text begins with a Chinese, Japanese or Korean character."""
    return _CJK.match(text) is not None
