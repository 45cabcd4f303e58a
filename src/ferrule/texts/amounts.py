"""Amounts of money as people write them: $5, 20 €, 12 dollars, 120元."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.numbers import NUMBER, SCALED

CURRENCY_SIGNS: Final = ("$", "€", "£", "¥")
"""Signs that are written before the number; others follow it."""
CURRENCIES: Final = (*CURRENCY_SIGNS, "元", "美元", "欧元", "日元", "港元", "英镑")
_NAMES: Final = {
    **dict.fromkeys(("dollar", "buck", "usd"), "$"),
    **dict.fromkeys(("euro", "eur"), "€"),
    **dict.fromkeys(("yuan", "rmb", "￥"), "¥"),
    **dict.fromkeys(("块", "块钱"), "元"),
}
_AMOUNT: Final = lazy_pattern(
    rf"(?P<sign>[$€£¥￥]) ?(?P<number>{SCALED})"
    rf"|(?P<counted>{NUMBER})(?P<word> ?[$€£](?!\d)| ?(?:dollars?|euros?|bucks|yuan|rmb|usd|eur)\b"
    r"|[美欧日港]?元|英镑|块钱?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of money that a text contains, and where."""

    number: str
    """As it is written, without the currency."""
    currency: str
    """One of `CURRENCIES`."""
    start: int
    end: int
    currency_span: range
    """The positions of the sign or word that can be left out of a calculation."""

    def __str__(self) -> str:
        return f"{self.currency}{self.number}" if self.currency in CURRENCY_SIGNS else f"{self.number}{self.currency}"


def find_amounts(text: str) -> list[Amount]:
    """The amounts of a text, in order."""
    amounts = []
    for match in _AMOUNT.finditer(text):
        name = (match["sign"] or match["word"]).strip().lower().removesuffix("s")
        span = range(*match.span("sign" if match["sign"] else "word"))
        if match["word"] and text[match.end() : match.end() + 1].isdigit():
            span = range(0)  # without the word, 120元5个人 would be one number
        amounts.append(Amount(match["number"] or match["counted"], _NAMES.get(name, name), *match.span(), span))
    return amounts
