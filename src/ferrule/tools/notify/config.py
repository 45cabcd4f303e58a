"""What `[tools.notify]` says: the channels by which people can be told something, by name.

Who gets a message stands here, and only here: a model chooses a channel, never an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Final

from ferrule.errors import SetupError
from ferrule.executors.http.guarded_client import fault_of_header
from ferrule.names import did_you_mean
from ferrule.tools.notify.addresses import check_address
from ferrule.tools.notify.formats import FORMATS, SIGNED

KINDS: Final = {
    "webhook": ("url", "format", "headers", "secret"),
    "email": ("host", "port", "security", "username", "password", "sender", "to", "ca_file"),
    "log": ("path",),
}
"""What can be said of each kind of channel."""
SECURITIES: Final = ("starttls", "tls", "none")
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """One way to tell people something. `${VAR}` in its texts is read from the environment when a message is sent."""

    kind: str = ""
    """`webhook`, `email` or `log`."""
    url: str = ""
    """Where a webhook is, such as `${SLACK_WEBHOOK}`."""
    format: str = "json"
    """What a webhook understands: `json`, `slack`, `discord`, `feishu`, `dingtalk` or `wecom`."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent along with what goes to a webhook."""
    secret: str = ""
    """What requests to `feishu` and `dingtalk` are signed with, where their robot asks for that."""
    host: str = ""
    """The mail server."""
    port: int | None = None
    """Left out: 587 with `starttls`, 465 with `tls`, 25 with `none`."""
    security: str = "starttls"
    """`starttls`, `tls` from the first byte on, or `none`."""
    username: str = ""
    password: str = ""
    """Name a variable, as in `${SMTP_PASSWORD}`."""
    sender: str = ""
    """Whom mails are from: `Ferrule <ferrule@example.com>`."""
    to: list[str] = field(default_factory=list)
    """Who gets the mails."""
    ca_file: str = ""
    """Certificates to trust instead of the usual ones, for a mail server of your own."""
    path: str = ""
    """The file a log is written to, from the project's folder down; none: the logger `ferrule.notify`."""

    def __post_init__(self) -> None:
        _require_known("kind", self.kind, tuple(KINDS))
        for name in fields(self):
            if name.name != "kind" and name.name not in KINDS[self.kind] and self._says(name.name):
                owner = next(kind for kind, own in KINDS.items() if name.name in own)
                raise SetupError(f"{name.name} is for kind = {owner!r}, not for {self.kind!r}: leave it out")
        checks = {"webhook": self._check_webhook, "email": self._check_email, "log": self._check_log}
        checks[self.kind]()

    def _says(self, name: str) -> bool:
        default = {"format": "json", "security": "starttls"}.get(name)
        value = getattr(self, name)
        return bool(value) and value != default

    def _check_webhook(self) -> None:
        _require(self, "url")
        _require_known("format", self.format, tuple(FORMATS))
        if not self.url.startswith(("http://", "https://", "${")):
            raise SetupError("url must begin with http:// or https://, or be a variable such as ${SLACK_WEBHOOK}")
        for name in self.headers:
            if fault := fault_of_header(name):
                raise SetupError(f"headers: {fault}")
        if self.secret and self.format not in SIGNED:
            raise SetupError(f"secret signs what goes to {' and '.join(SIGNED)}; format {self.format!r} has none")

    def _check_email(self) -> None:
        for name in ("host", "sender", "to"):
            _require(self, name)
        _require_known("security", self.security, SECURITIES)
        if self.port is not None and not 0 < self.port < 65536:
            raise SetupError(f"port must be from 1 to 65535, not {self.port}")
        if bool(self.username) != bool(self.password):
            raise SetupError("username and password come together: give both or none")
        if self.password and self.security == "none" and self.host not in _THIS_MACHINE:
            raise SetupError("with security = 'none' anybody on the way could read the password: use starttls or tls")
        for address in (self.sender, *self.to):
            if "${" not in address:
                check_address(address)

    def _check_log(self) -> None:
        parts = PurePosixPath(self.path).parts
        if self.path and (not parts or self.path.startswith("/") or ".." in parts or "\0" in self.path):
            raise SetupError(f"path must be one in the project's folder, such as 'notices.jsonl', not {self.path!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """How people can be told something."""

    channels: dict[str, ChannelConfig] = field(default_factory=dict)
    """`[tools.notify.channels.<name>]`: models choose one by its name."""
    timeout: float = 20.0
    """Seconds a message may take until it is known to have been sent."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= 600:
            raise SetupError(f"timeout must be more than 0 and at most 600 seconds, not {self.timeout!r}")


def _require(channel: ChannelConfig, name: str) -> None:
    if not getattr(channel, name):
        raise SetupError(f"a channel of kind {channel.kind!r} needs {name}")


def _require_known(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise SetupError(f"{name} must be one of {', '.join(known)}, not {value!r}.{did_you_mean(value, known)}")
