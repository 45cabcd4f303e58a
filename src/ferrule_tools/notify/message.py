"""A notification message, and the formats in which webhooks of chat services take it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlencode

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, Retry
from ferrule.texts.shorten import first_sentence, single_line

Level: TypeAlias = Literal["info", "warning", "error"]

MAX_MESSAGE: Final = 10_000
"""Characters."""
MAX_TITLE: Final = 200

_CONTROL_CHARACTERS: Final = lazy_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAYBE_SENT: Final = "The message may have been sent: find out before you send it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message that any channel can carry: no control characters, and a title of one line."""

    message: str
    title: str
    level: Level
    created_at: datetime

    @classmethod
    def of(cls, message: str, title: str | None, level: Level) -> Notice:
        text = _clean_text(message).strip()
        if not text:
            raise Retry("The message is empty: write what people should know.")
        if len(text) > MAX_MESSAGE:
            raise Retry(f"The message has {len(text):,} characters; the limit is {MAX_MESSAGE:,}. Shorten it.")
        heading = single_line(_clean_text(title or ""))
        if len(heading) > MAX_TITLE:
            raise Retry(
                f"The title has {len(heading):,} characters; the limit is {MAX_TITLE}. Move them into the message."
            )
        return cls(message=text, title=heading, level=level, created_at=datetime.now(UTC))

    @property
    def prefix(self) -> str:
        """Shows the level; information needs none."""
        return "" if self.level == "info" else f"[{self.level.upper()}] "

    @property
    def subject(self) -> str:
        return self.prefix + (self.title or first_sentence(self.message))

    @property
    def text(self) -> str:
        """Title and message, for channels that take one text."""
        return f"{self.prefix}{self.title}\n{self.message}" if self.title else f"{self.prefix}{self.message}"


def _clean_text(text: str) -> str:
    """Remove what no channel can carry: lone surrogates, and control characters except tabs and line ends."""
    text = text.encode("utf-8", "replace").decode()
    return _CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def mark_as_maybe_sent(failure: CallError) -> CallError:
    """Mark a failure after which the message may have been sent, so that it is not blindly sent again."""
    return type(failure)(f"{failure} {_MAYBE_SENT}", **{**failure.details, "outcome": "unknown"})


# Formats of chat services. Each gets plain text. A message cannot mention anyone (`@all`), and no link is previewed,
# because the text may repeat untrusted content. Feishu, DingTalk and WeCom respond to every request with status 200:
# a code in the body says whether they accepted the message.

RequestBody: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFormat:
    """The requests and responses of one chat service."""

    body: Callable[[Notice], RequestBody]
    max_length: int | None = None
    """Of a text; None: not documented."""
    counts_bytes: bool = False
    code_key: str = ""
    """The key in the response whose value is 0 on success; empty: the HTTP status decides."""
    reason_key: str = ""
    """The key in the response that explains a failure."""
    transient_codes: frozenset[int] = frozenset()
    """Codes that mean: too many messages, try later."""

    def length(self, notice: Notice) -> int:
        return len(notice.text.encode()) if self.counts_bytes else len(notice.text)


def _json_body(notice: Notice) -> RequestBody:
    return {
        "title": notice.title,
        "message": notice.message,
        "level": notice.level,
        "time": notice.created_at.isoformat(timespec="seconds"),
    }


def _slack_body(notice: Notice) -> RequestBody:
    escaped = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "unfurl_links": False, "unfurl_media": False}


def _discord_body(notice: Notice) -> RequestBody:
    suppress_embeds = 4
    return {"content": notice.text, "allowed_mentions": {"parse": []}, "flags": suppress_embeds}


def _feishu_body(notice: Notice) -> RequestBody:
    # A "post" and not a "text": in a text, `<at user_id="all">` mentions everybody.
    lines = [[{"tag": "text", "text": notice.message}]]
    return {
        "msg_type": "post",
        "content": {"post": {"zh_cn": {"title": f"{notice.prefix}{notice.title}".strip(), "content": lines}}},
    }


def _dingtalk_body(notice: Notice) -> RequestBody:
    return {"msgtype": "text", "text": {"content": notice.text}, "at": {"isAtAll": False}}


def _wecom_body(notice: Notice) -> RequestBody:
    # `<@user>` mentions a user: a zero-width space between the characters keeps it plain text.
    return {"msgtype": "text", "text": {"content": notice.text.replace("<@", "<\u200b@")}}


FORMATS: Final[Mapping[str, WebhookFormat]] = {
    "json": WebhookFormat(body=_json_body),
    "slack": WebhookFormat(body=_slack_body),
    "discord": WebhookFormat(body=_discord_body, max_length=2_000),
    "feishu": WebhookFormat(
        body=_feishu_body,
        max_length=18_000,
        counts_bytes=True,
        code_key="code",
        reason_key="msg",
        transient_codes=frozenset({11232}),
    ),
    "dingtalk": WebhookFormat(
        body=_dingtalk_body,
        max_length=18_000,
        counts_bytes=True,
        code_key="errcode",
        reason_key="errmsg",
        transient_codes=frozenset({-1, 130101, 410100}),
    ),
    "wecom": WebhookFormat(
        body=_wecom_body,
        max_length=2_000,
        counts_bytes=True,
        code_key="errcode",
        reason_key="errmsg",
        transient_codes=frozenset({-1, 45009}),
    ),
}


def _sign_feishu(url: str, body: RequestBody, secret: str, now: float) -> tuple[str, RequestBody]:
    timestamp = str(int(now))
    signature = _sign_text(key=f"{timestamp}\n{secret}", text="")
    return url, {"timestamp": timestamp, "sign": signature, **body}


def _sign_dingtalk(url: str, body: RequestBody, secret: str, now: float) -> tuple[str, RequestBody]:
    timestamp = str(int(now * 1000))
    query = urlencode({"timestamp": timestamp, "sign": _sign_text(key=secret, text=f"{timestamp}\n{secret}")})
    return f"{url}{'&' if '?' in url else '?'}{query}", body


SIGNERS: Final[Mapping[str, Callable[[str, RequestBody, str, float], tuple[str, RequestBody]]]] = {
    "feishu": _sign_feishu,
    "dingtalk": _sign_dingtalk,
}
"""Services that can require a signature, and how to sign: they return a new URL and body."""


def _sign_text(*, key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()
