"""What the user has named: whether a value is in a trusted text of a run as a whole word, address, URL or path."""

from __future__ import annotations

import re
from posixpath import normpath
from typing import Final
from unicodedata import normalize
from urllib.parse import SplitResult, urlsplit

LETTER: Final = r"0-9A-Za-z_\u00c0-\u024f\u0370-\u1fff"
"""Characters of words that are separated from other words; a Chinese word may stand next to any character."""
_START: Final = rf"(?<![{LETTER}])(?<![{LETTER}][.:/@%+,-])"
_END: Final = rf"(?![{LETTER}]|[.:/@%+,-][{LETTER}])"
_ADDRESS_START: Final = rf"(?<![{LETTER}.+%@/-])"
_ADDRESS_END: Final = rf"(?![{LETTER}@-]|\.[{LETTER}])"
EMAIL: Final = re.compile(
    r"[^\s@<>,;:\"'()\[\]{}/]{1,64}@[^\s@<>,;:\"'()\[\]{}/]{1,190}\.[^\s@<>,;:\"'()\[\]{}./!?，。]{1,63}"
)
"""The numbers keep the search linear in texts that anybody may have written."""
_LINK_CHARACTERS: Final = r"[^\s<>\"'`|\\^{}\u3000-\u303f\uff00-\uffef]"
_CHINESE_END: Final = re.compile(r"[\u3400-\u9fff][^0-9A-Za-z./:]*$")
"""What a text in Chinese says directly after a link."""
_MARKS: Final = ".,;:!?)]*，。）"
"""What ends a sentence, and no link."""
LINK: Final = re.compile(
    rf"(?<![{LETTER}])(?:[a-z][a-z0-9+.-]{{1,20}}://|www\.){_LINK_CHARACTERS}+"
    rf"|(?<![{LETTER}@.-])(?:[a-z0-9-]{{1,63}}\.){{1,127}}(?:com|net|org|io|co|cn|ru|info|biz|xyz|top|app|dev|me|site|online|shop|link|click)"
    rf"(?![{LETTER}.-]*[{LETTER}])(?:/{_LINK_CHARACTERS}*)?",
    re.I,
)
_PUBLIC_MAIL: Final = frozenset(
    "126.com 139.com 163.com aol.com fastmail.com foxmail.com gmail.com gmx.at gmx.ch gmx.com gmx.de gmx.net "
    "googlemail.com hotmail.co.uk hotmail.com hotmail.de hotmail.fr icloud.com live.com mail.com mail.ru me.com "
    "msn.com orange.fr outlook.com outlook.de pm.me proton.me protonmail.com qq.com sina.com sohu.com t-online.de "
    "tutanota.com vip.qq.com web.de yahoo.co.jp yahoo.co.uk yahoo.com yahoo.de yahoo.fr yandex.com yandex.ru yeah.net "
    "zoho.com".split()
)
"""Domains under which anybody can get an address: they vouch for nobody."""
SHORT_NUMBER: Final = 5
"""Digits of a number that may stand in a text for something else; it is an id only with a word that says so."""


class TrustedTexts:
    """The texts of a run that come from the user, or from what the user relies on."""

    def __init__(self, own_domains: frozenset[str]) -> None:
        self._own_domains = own_domains
        self._texts: list[str] = []
        self._joined: tuple[str, str, str] | None = None
        """All texts: as they are, normalized, and normalized in lower case."""
        self._links: list[tuple[SplitResult, bool]] = []
        """The links in all texts, and whether a text goes on directly after the link, in Chinese."""

    def add(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._joined = None

    def has_address(self, address: str) -> bool:
        inner = re.fullmatch(r"[^<>]*<([^<>]+)>", address)
        address = (inner[1] if inner else address).strip()
        if self.has(address, start=_ADDRESS_START, end=_ADDRESS_END):
            return True
        local, at, domain = address.rpartition("@")
        if not at or not local or not address.isascii():
            return False
        names = [name for name in re.split(r"[^a-z]+", local.lower()) if len(name) > 1]
        return bool(names) and not re.search(r"\d", local) and all(map(self.has, names)) and self._has_domain(domain)

    def _has_domain(self, domain: str) -> bool:
        domain = domain.lower()
        if domain in self._own_domains:
            return True
        # A domain of which the user wrote only a page vouches for nobody: the page may be the attacker's.
        return domain not in _PUBLIC_MAIL and self.has(f"@{domain}", start="", end=_ADDRESS_END)

    def has_url(self, url: str) -> bool:
        """Return whether a trusted text has the URL, or one that is the beginning of its path, or its host alone."""
        parts = split_url(url)
        host = (parts.hostname or "").lower()
        if not host or parts.username is not None or parts.password is not None or not url.isprintable():
            return False
        if normalize_text(url) == url.lower() and host in self._own_domains:
            return True
        self._join()
        for trusted, is_cut in self._links:
            is_same_host = (trusted.hostname or "").lower() == host and _port(trusted) == _port(parts)
            if is_same_host and is_cut and trusted.path.endswith("/") and parts.path != trusted.path:
                continue  # the path may go on in Chinese
            if is_same_host and trusted.username is None and _is_below(parts.path, trusted.path):
                if trusted.path.strip("/") and parts.path.rstrip("/") == trusted.path.rstrip("/"):
                    return parts.query in ("", trusted.query)
                return True
        return "/" not in url and self.has(url)

    def has_path(self, path: str) -> bool:
        clean = normpath(path.replace("\\", "/")) if path else path
        if clean.startswith("..") or "\0" in path:
            return False
        if self.has(clean, is_exact=True):
            return True
        folders = clean.split("/")
        parents = ("/".join(folders[:end]) for end in range(len(folders) - 1, 1, -1))
        return any(self.has(parent, is_exact=True, end=rf"/?(?![{LETTER}]|[.:@%+,/-][{LETTER}])") for parent in parents)

    def has_id(self, text: str, words: frozenset[str]) -> bool:
        if not text.isdigit() or len(text) >= SHORT_NUMBER:
            return self.has(text.lstrip("#@"))
        before = "|".join(sorted(map(re.escape, {"id", "no", "nr", "number", "编号", "号", *words})))
        pattern = rf"(?:#|(?<![a-z])(?:{before})\W{{0,3}}(?:(?:id|no|nr|number|is)\W{{0,3}})*){re.escape(text)}{_END}"
        return re.search(pattern, self._join()[2]) is not None

    def _join(self) -> tuple[str, str, str]:
        if self._joined is None:
            raw = "\n".join(self._texts)
            clean = normalize("NFKC", raw)
            self._joined = raw, clean, normalize_text(raw)
            links = [link.rstrip(_MARKS) for link in LINK.findall(clean)]
            self._links = [(split_url(link), False) for link in links]
            self._links += [(split_url(cut_link(link)), True) for link in links if cut_link(link) != link]
        return self._joined

    def has(
        self, value: str, *, start: str = _START, end: str = _END, is_exact: bool = False, spaced: bool = False
    ) -> bool:
        """Return whether a value is in a trusted text as a whole word. A value with look-alike characters must be there
        exactly so.
        """
        if not value.strip():
            return False
        raw, clean, folded = self._join()
        if normalize("NFKC", value) != value:
            text = raw
        else:
            value, text = (value, clean) if is_exact else (normalize_text(value), folded)
        if not spaced and value not in text:
            return False
        letters = [re.escape(letter) for letter in value if letter not in " -"] if spaced else [re.escape(value)]
        if spaced:  # another group of digits belongs to the account
            start, end = rf"{start}(?<!\d[ -])", rf"{end}(?![ -]?\d)"
        return re.search(f"{start}{'[ -]?'.join(letters)}{end}", text) is not None


def cut_link(link: str) -> str:
    """Return a link without the Chinese words that a text says directly after the link."""
    return _CHINESE_END.sub("", link).rstrip(_MARKS)


def normalize_text(text: str) -> str:
    return " ".join(normalize("NFKC", text).casefold().split())


def split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        _ = parts.port
    except ValueError:
        return urlsplit("")
    return parts if "\\" not in url else urlsplit("")


def _port(parts: SplitResult) -> int | None:
    return None if parts.port in (80, 443) else parts.port


def _is_below(path: str, folder: str) -> bool:
    if ".." in path.split("/") or "%2e" in path.lower():
        return path == folder
    folder = folder.rstrip("/")
    return not folder or path.rstrip("/") == folder or path.startswith(f"{folder}/")
