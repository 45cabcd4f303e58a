"""Addresses that lack their scheme, or have the wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ferrule.memory.adjustments.call import Adjustment, FailedCall, shown
from ferrule.search.words import terms_of

_NAMES: Final = frozenset(terms_of("url uri href link endpoint website"))
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HTTP = re.compile(r"(h?t{1,3}ps?)(?::/{0,3}|/{2,3}|;/{1,2})(?=[\w.-])", re.I)
"""As it should be, or nearly: `htp://`, `http:/`, `https//`."""
_HOST = re.compile(r"(?:[\w-]+(?:\.[\w-]+)+|localhost)(?::\d{1,5})?(?:[/?#]|\Z)")
_ON_THIS_MACHINE = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?=[:/?#]|\Z)")
_ABOUT_ADDRESSES = re.compile(
    r"\bur[li]s?\b|scheme|protocol|address|https?:|invalid|unsupported|网址|地址|协议|无效", re.I
)
_WANTS_TLS = re.compile(
    r"https (?:is )?required|requires? (?:https|ssl|tls)|(?:use|only) (?:the )?https|must (?:use|be) https"
    r"|must start with ['\"]?https|sent to (?:an )?https port|ssl[_ ]required|insecure|not secure"
    r"|需要 ?https|使用 ?https",
    re.I,
)
_AROUND = " \t\r\n<>\"'`“”‘’《》「」"


def mended_urls(call: FailedCall) -> Iterator[Adjustment]:
    for name, value in call.texts():
        if not _is_address(call, name, value):
            continue
        address = value.strip(_AROUND)
        if _WANTS_TLS.search(call.error) and address[:7].lower() == "http://":
            yield call.with_value(name, f"https://{address[7:]}", f"The error asks for https; {name!r} had http.", 0.85)
        elif _ABOUT_ADDRESSES.search(call.error) and (mended := _mended(address)) is not None:
            reason = f"{name!r} needs a whole address with its scheme; it was {shown(value)}."
            yield call.with_value(name, mended, reason, 0.8)


def _is_address(call: FailedCall, name: str, value: str) -> bool:
    named = not _NAMES.isdisjoint(call.words_about(name))
    return named or call.schema_of(name).get("format") in ("uri", "url") or value.lower().startswith("http")


def _mended(address: str) -> str | None:
    if written := _HTTP.match(address):
        scheme = "https" if written[1].lower().endswith("s") else "http"
        return f"{scheme}://{address[written.end() :]}"
    if _OTHER_SCHEME.match(address):
        return address
    address = address.removeprefix("//")
    if not _HOST.match(address):
        return None
    return f"{'http' if _ON_THIS_MACHINE.match(address) else 'https'}://{address}"
