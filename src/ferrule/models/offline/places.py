"""Time zones, languages and currencies by the names people use for them.

World knowledge, not knowledge of tools: that Tokyo keeps Asia/Tokyo, that French is `fr`, that 美元 is USD.
"""

from __future__ import annotations

import re
from functools import cache
from zoneinfo import available_timezones

from ferrule.models.offline.reading import Found

_ZONES = """
utc|gmt|世界时|世界协调时:UTC
beijing|peking|shenzhen|guangzhou|china|北京|上海|广州|深圳|中国:Asia/Shanghai
hong kong|香港:Asia/Hong_Kong
taipei|taiwan|台北:Asia/Taipei
tokyo|japan|osaka|kyoto|东京|日本|大阪:Asia/Tokyo
seoul|korea|south korea|首尔|韩国:Asia/Seoul
singapore|新加坡:Asia/Singapore
mumbai|delhi|new delhi|bangalore|bengaluru|kolkata|calcutta|india|印度|孟买|新德里:Asia/Kolkata
dubai|abu dhabi|迪拜:Asia/Dubai
moscow|russia|莫斯科:Europe/Moscow
london|england|uk|britain|伦敦|英国:Europe/London
paris|france|巴黎|法国:Europe/Paris
berlin|germany|munich|hamburg|frankfurt|cologne|柏林|德国|慕尼黑:Europe/Berlin
madrid|spain|barcelona|马德里|西班牙:Europe/Madrid
rome|italy|milan|罗马|意大利:Europe/Rome
amsterdam|netherlands|阿姆斯特丹:Europe/Amsterdam
zurich|geneva|switzerland|苏黎世|日内瓦:Europe/Zurich
new york|nyc|boston|washington|miami|atlanta|philadelphia|est|edt|纽约|华盛顿|波士顿:America/New_York
chicago|dallas|houston|austin|texas|芝加哥|休斯顿:America/Chicago
denver|colorado|丹佛:America/Denver
los angeles|san francisco|seattle|san diego|las vegas|california|pst|pdt:America/Los_Angeles
洛杉矶|旧金山|西雅图:America/Los_Angeles
toronto|montreal|ottawa|多伦多:America/Toronto
vancouver|温哥华:America/Vancouver
sao paulo|são paulo|rio de janeiro|brazil|圣保罗|巴西:America/Sao_Paulo
sydney|melbourne|canberra|悉尼|墨尔本:Australia/Sydney
auckland|new zealand|wellington|奥克兰|新西兰:Pacific/Auckland
cairo|egypt|开罗:Africa/Cairo
johannesburg|cape town|south africa|约翰内斯堡:Africa/Johannesburg
"""
_LANGUAGES = """
english:en:英语 英文
chinese mandarin:zh:中文 汉语 普通话
french:fr:法语 法文
german:de:德语 德文
spanish:es:西班牙语 西班牙文
italian:it:意大利语
portuguese:pt:葡萄牙语
russian:ru:俄语 俄文
japanese:ja:日语 日文
korean:ko:韩语 韩文
arabic:ar:阿拉伯语
hindi:hi:印地语
dutch:nl:荷兰语
polish:pl:波兰语
turkish:tr:土耳其语
swedish:sv:瑞典语
greek:el:希腊语
vietnamese:vi:越南语
thai:th:泰语
latin:la:拉丁语
"""
_CURRENCIES = """
usd|dollar|dollars|$|美元|美金:USD
eur|euro|euros|€|欧元:EUR
gbp|pound|pounds|£|英镑:GBP
jpy|yen|日元:JPY
cny|rmb|yuan|renminbi|¥|人民币:CNY
chf|franc|francs|瑞士法郎:CHF
inr|rupee|rupees|卢比:INR
krw|won|韩元:KRW
"""
_CONTINENTS = ("Africa/", "America/", "Asia/", "Atlantic/", "Australia/", "Europe/", "Indian/", "Pacific/")
_ZONE_NAME = re.compile(r"\b[A-Z][A-Za-z]+(?:/[A-Z][A-Za-z_+-]+)+\b|\bUTC\b|\bGMT\b")


def zones_in(text: str) -> list[Found]:
    """The time zones of the places a text names, as IANA writes them."""
    named = [Found(m.group(), m.start(), m.end()) for m in _ZONE_NAME.finditer(text) if m.group() in _zones().values()]
    return named or _looked_up(text, _zones())


def languages_in(text: str) -> list[Found]:
    """Languages a text names: the value is the name and the two-letter code."""
    return _looked_up(text, _languages())


def currencies_in(text: str) -> list[Found]:
    """Currencies a text names, by their codes; codes that stand there as such come first."""
    codes = [Found(m.group(), m.start(), m.end()) for m in re.finditer(r"(?<![A-Za-z])[A-Z]{3}(?![A-Za-z])", text)]
    return codes or _looked_up(text, _currencies())


def _looked_up(text: str, names: dict[str, str]) -> list[Found]:
    """The longest names at each place."""
    found: list[Found] = []
    lowered, at = text.lower(), 0
    for match in _pattern(tuple(names)).finditer(lowered) if len(lowered) == len(text) else ():
        if match.start() >= at:
            found.append(Found(names[match.group()], match.start(), match.end()))
            at = match.end()
    return found


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    written = [rf"(?<![a-z]){re.escape(n)}(?![a-z])" if n[0].isalpha() and n.isascii() else re.escape(n) for n in names]
    return re.compile("|".join(sorted(written, key=len, reverse=True)))


@cache
def _zones() -> dict[str, str]:
    known = {
        zone.rpartition("/")[2].replace("_", " ").lower(): zone
        for zone in sorted(available_timezones())
        if zone.startswith(_CONTINENTS) and zone.count("/") == 1
    }
    return {**known, **_table(_ZONES)}


@cache
def _languages() -> dict[str, str]:
    names = {}
    for line in _LANGUAGES.strip().splitlines():
        english, code, chinese = line.split(":")
        said = f"{english.split()[0].capitalize()} {code}"
        names.update(dict.fromkeys((*english.split(), *chinese.split()), said))
    return names


@cache
def _currencies() -> dict[str, str]:
    return _table(_CURRENCIES)


def _table(text: str) -> dict[str, str]:
    names = {}
    for line in text.strip().splitlines():
        keys, _, value = line.rpartition(":")
        names.update(dict.fromkeys(keys.split("|"), value))
    return names
