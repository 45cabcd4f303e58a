"""The section `[tools.notify]` of `ferrule.toml`, the channels for notifications by name, and what can be sent to them.

Recipients are set here and only here: a model chooses a channel, never an address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlencode

from ferrule.core.content import replace_surrogates
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, Retry, SetupError
from ferrule.http.client import describe_header_problem
from ferrule.texts.shorten import first_sentence, single_line

if TYPE_CHECKING:
    from email.headerregistry import Address

CHANNEL_KEYS: Final = {
    "webhook": ("url", "format", "headers", "secret"),
    "email": ("host", "port", "security", "username", "password", "sender", "to", "ca_file"),
    "log": ("path",),
}
"""The keys of each kind of channel."""
_DEFAULTS: Final = {"format": "json", "security": "starttls"}
SECURITY_MODES: Final = ("starttls", "tls", "none")
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """One channel. `${VAR}` in its texts is read from the environment when a message is sent."""

    kind: str = ""
    """`webhook`, `email` or `log`."""
    url: str = ""
    """The address of a webhook, such as `${SLACK_WEBHOOK}`."""
    format: str = "json"
    """The format of a webhook: `json`, `slack`, `discord`, `feishu`, `dingtalk` or `wecom`."""
    headers: dict[str, str] = field(default_factory=dict)
    """HTTP headers of requests to a webhook."""
    secret: str = ""
    """Signs requests to `feishu` and `dingtalk`, where their robot requires it."""
    host: str = ""
    """The mail server."""
    port: int | None = None
    """Left out: 587 with `starttls`, 465 with `tls`, 25 with `none`."""
    security: str = "starttls"
    """`starttls`, `tls` from the first byte on, or `none`."""
    username: str = ""
    password: str = ""
    """Use a variable, as in `${SMTP_PASSWORD}`."""
    sender: str = ""
    """The From address: `Ferrule <ferrule@example.com>`."""
    to: list[str] = field(default_factory=list)
    """The recipients."""
    ca_file: str = ""
    """Certificates to trust instead of the public ones, for a mail server of your own."""
    path: str = ""
    """The file of a log, relative to the project's folder; empty: the logger `ferrule.notify`."""

    def __post_init__(self) -> None:
        _require_one_of("kind", self.kind, tuple(CHANNEL_KEYS))
        for owner, keys in CHANNEL_KEYS.items():
            for key in keys if owner != self.kind else ():
                if getattr(self, key) and getattr(self, key) != _DEFAULTS.get(key):
                    raise SetupError(f"{key} is for kind = {owner!r}, not for {self.kind!r}: leave it out")
        if self.kind == "webhook":
            self._check_webhook()
        elif self.kind == "email":
            self._check_email()
        parts = PurePosixPath(self.path).parts
        if self.path and (not parts or self.path.startswith("/") or ".." in parts or "\0" in self.path):
            raise SetupError(f"path must be inside the project's folder, such as 'notices.jsonl', not {self.path!r}")

    def _require_settings(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name):
                raise SetupError(f"a channel of kind {self.kind!r} needs {name}")

    def _check_webhook(self) -> None:
        self._require_settings("url")
        _require_one_of("format", self.format, tuple(FORMATS))
        if not self.url.startswith(("http://", "https://", "${")):
            raise SetupError("url must begin with http:// or https://, or be a variable such as ${SLACK_WEBHOOK}")
        for name in self.headers:
            if fault := describe_header_problem(name):
                raise SetupError(f"headers: {fault}")
        if self.secret and self.format not in SIGNED_FORMATS:
            raise SetupError(
                f"secret signs messages to {' and '.join(SIGNED_FORMATS)}; format {self.format!r} has none"
            )

    def _check_email(self) -> None:
        self._require_settings("host", "sender", "to")
        _require_one_of("security", self.security, SECURITY_MODES)
        if self.port is not None and not 0 < self.port < 65536:
            raise SetupError(f"port must be from 1 to 65535, not {self.port}")
        if bool(self.username) != bool(self.password):
            raise SetupError("username and password come together: give both or none")
        if self.password and self.security == "none" and self.host not in _LOCAL_HOSTS:
            raise SetupError("with security = 'none' the password could be read on the network: use starttls or tls")
        for address in (self.sender, *self.to):
            if "${" not in address:
                parse_address(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """The channels for notifications."""

    channels: dict[str, ChannelConfig] = field(default_factory=dict)
    """`[tools.notify.channels.<name>]`: models choose one by its name."""
    timeout: float = 20.0
    """Seconds for sending a message, including its confirmation."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= 600:
            raise SetupError(f"timeout must be more than 0 and at most 600 seconds, not {self.timeout!r}")


def _require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SetupError(f"{name} must be one of {', '.join(choices)}, not {value!r}.{did_you_mean(value, choices)}")


def parse_address(text: str) -> Address:
    """Parse `ops@example.com` or `运维 <ops@example.com>`. Raises SetupError for anything else."""
    # Imported here because every start of the command line imports this module.
    from email.errors import MessageError
    from email.headerregistry import Address
    from email.utils import getaddresses

    invalid = SetupError(f"{text!r} is not a mail address: write ops@example.com, or Operations <ops@example.com>")
    addresses = getaddresses([text])
    if len(addresses) != 1 or not text.isprintable():
        raise invalid
    [(name, spec)] = addresses
    try:
        # ASCII only: other addresses need an extension that few mail servers have. Names may be in any script.
        spec.encode("ascii")
        address = Address(display_name=name, addr_spec=spec)
    except (MessageError, ValueError, IndexError):
        raise invalid from None
    if not address.username or not address.domain:
        raise invalid
    return address


# Messages, and the formats in which webhooks of chat services take them

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
        """Return a mark of the level; information has no mark."""
        return "" if self.level == "info" else f"[{self.level.upper()}] "

    @property
    def subject(self) -> str:
        return self.prefix + (self.title or first_sentence(self.message))

    @property
    def text(self) -> str:
        """Return title and message, for channels that take one text."""
        return f"{self.prefix}{self.title}\n{self.message}" if self.title else f"{self.prefix}{self.message}"


def _clean_text(text: str) -> str:
    """Remove what no channel can carry: lone surrogates, and control characters except tabs and line ends."""
    return _CONTROL_CHARACTERS.sub("", replace_surrogates(text).replace("\r\n", "\n").replace("\r", "\n"))


def mark_as_maybe_sent(failure: CallError) -> CallError:
    """Mark a failure after which the message may have been sent, so that it is not blindly sent again."""
    return type(failure)(f"{failure} {_MAYBE_SENT}", **{**failure.details, "outcome": "unknown"})


# Formats of chat services. Each gets plain text. A message cannot mention anyone (`@all`), and no link is previewed,
# because the text may repeat untrusted content. Feishu, DingTalk and WeCom respond to every request with status 200:
# a code in the body says whether they accepted the message.

RequestBody: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFormat:
    """The limits and the responses of one chat service."""

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


FORMATS: Final[Mapping[str, WebhookFormat]] = {
    "json": WebhookFormat(),
    "slack": WebhookFormat(),
    "discord": WebhookFormat(max_length=2_000),
    "feishu": WebhookFormat(
        max_length=18_000,
        counts_bytes=True,
        code_key="code",
        reason_key="msg",
        transient_codes=frozenset({11232}),
    ),
    "dingtalk": WebhookFormat(
        max_length=18_000,
        counts_bytes=True,
        code_key="errcode",
        reason_key="errmsg",
        transient_codes=frozenset({-1, 130101, 410100}),
    ),
    "wecom": WebhookFormat(
        max_length=2_000,
        counts_bytes=True,
        code_key="errcode",
        reason_key="errmsg",
        transient_codes=frozenset({-1, 45009}),
    ),
}


def build_body(format: str, notice: Notice) -> RequestBody:
    """Return the body of a request to a webhook of this format."""
    match format:
        case "slack":
            escaped = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            return {"text": escaped, "unfurl_links": False, "unfurl_media": False}
        case "discord":
            suppress_embeds = 4
            return {"content": notice.text, "allowed_mentions": {"parse": []}, "flags": suppress_embeds}
        case "feishu":
            # A "post" and not a "text": in a text, `<at user_id="all">` mentions everybody.
            lines = [[{"tag": "text", "text": notice.message}]]
            post = {"title": f"{notice.prefix}{notice.title}".strip(), "content": lines}
            return {"msg_type": "post", "content": {"post": {"zh_cn": post}}}
        case "dingtalk":
            return {"msgtype": "text", "text": {"content": notice.text}, "at": {"isAtAll": False}}
        case "wecom":
            # `<@user>` mentions a user: a zero-width space between the characters keeps it plain text.
            return {"msgtype": "text", "text": {"content": notice.text.replace("<@", "<\u200b@")}}
    created_at = notice.created_at.isoformat(timespec="seconds")
    return {"title": notice.title, "message": notice.message, "level": notice.level, "time": created_at}


SIGNED_FORMATS: Final = ("feishu", "dingtalk")
"""Services that can require a signature."""


def sign_request(format: str, url: str, body: RequestBody, secret: str, now: float) -> tuple[str, RequestBody]:
    if format == "feishu":
        timestamp = str(int(now))
        return url, {"timestamp": timestamp, "sign": _sign_text(key=f"{timestamp}\n{secret}", text=""), **body}
    timestamp = str(int(now * 1000))
    query = urlencode({"timestamp": timestamp, "sign": _sign_text(key=secret, text=f"{timestamp}\n{secret}")})
    return f"{url}{'&' if '?' in url else '?'}{query}", body


def _sign_text(*, key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()
