"""What the webhooks of chat services understand, and what their answers mean.

Each gets plain text. Nobody is called by name (`@all`) and no link is opened to preview it, whatever the text says:
it may repeat what strangers wrote. Feishu, DingTalk and WeCom answer with status 200 to everything; whether they took
a message stands in a code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from ferrule.tools.notify.notice import Notice

Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one kind of webhook is talked to."""

    body: Callable[[Notice], Body]
    most: int | None = None
    """How long a text may be; None: nobody says."""
    counts_bytes: bool = False
    code: str = ""
    """The member of an answer that is 0 when all is well; empty: the status says it."""
    words: str = ""
    """The member that says why it is not."""
    passing: frozenset[int] = frozenset()
    """Codes that mean: too many at once, try later."""

    def length(self, notice: Notice) -> int:
        return len(notice.text.encode()) if self.counts_bytes else len(notice.text)


def _json(notice: Notice) -> Body:
    return {
        "title": notice.title,
        "message": notice.message,
        "level": notice.level,
        "time": notice.at.isoformat(timespec="seconds"),
    }


def _slack(notice: Notice) -> Body:
    escaped = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "unfurl_links": False, "unfurl_media": False}


def _discord(notice: Notice) -> Body:
    suppress_embeds = 4
    return {"content": notice.text, "allowed_mentions": {"parse": []}, "flags": suppress_embeds}


def _feishu(notice: Notice) -> Body:
    # A "post" and not a "text": in a text `<at user_id="all">` calls everybody.
    lines = [[{"tag": "text", "text": notice.message}]]
    return {
        "msg_type": "post",
        "content": {"post": {"zh_cn": {"title": f"{notice.mark}{notice.title}".strip(), "content": lines}}},
    }


def _dingtalk(notice: Notice) -> Body:
    return {"msgtype": "text", "text": {"content": notice.text}, "at": {"isAtAll": False}}


def _wecom(notice: Notice) -> Body:
    # `<@somebody>` calls somebody: an invisible space between the signs keeps it a text.
    return {"msgtype": "text", "text": {"content": notice.text.replace("<@", "<\u200b@")}}


FORMATS: Final[Mapping[str, Format]] = {
    "json": Format(body=_json),
    "slack": Format(body=_slack),
    "discord": Format(body=_discord, most=2_000),
    "feishu": Format(
        body=_feishu, most=18_000, counts_bytes=True, code="code", words="msg", passing=frozenset({11232})
    ),
    "dingtalk": Format(
        body=_dingtalk,
        most=18_000,
        counts_bytes=True,
        code="errcode",
        words="errmsg",
        passing=frozenset({-1, 130101, 410100}),
    ),
    "wecom": Format(
        body=_wecom, most=2_000, counts_bytes=True, code="errcode", words="errmsg", passing=frozenset({-1, 45009})
    ),
}


def _sign_feishu(url: str, body: Body, secret: str, now: float) -> tuple[str, Body]:
    moment = str(int(now))
    sign = _hmac(key=f"{moment}\n{secret}", text="")
    return url, {"timestamp": moment, "sign": sign, **body}


def _sign_dingtalk(url: str, body: Body, secret: str, now: float) -> tuple[str, Body]:
    moment = str(int(now * 1000))
    entries = urlencode({"timestamp": moment, "sign": _hmac(key=secret, text=f"{moment}\n{secret}")})
    return f"{url}{'&' if '?' in url else '?'}{entries}", body


SIGNED: Final[Mapping[str, Callable[[str, Body, str, float], tuple[str, Body]]]] = {
    "feishu": _sign_feishu,
    "dingtalk": _sign_dingtalk,
}
"""Those that can ask for a signature, and how it is made: a new address, or a new body."""


def _hmac(*, key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()
