"""The section `[tools.notify]` of `ferrule.toml`: the channels for notifications, by name.

Recipients are set here and only here: a model chooses a channel, never an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError
from ferrule.http.client import describe_header_problem
from ferrule_tools.notify.message import FORMATS, SIGNERS

if TYPE_CHECKING:
    from email.headerregistry import Address

CHANNEL_KEYS: Final = {
    "webhook": ("url", "format", "headers", "secret"),
    "email": ("host", "port", "security", "username", "password", "sender", "to", "ca_file"),
    "log": ("path",),
}
"""The keys of each kind of channel."""
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
        for key in (each.name for each in fields(self)):
            if key != "kind" and key not in CHANNEL_KEYS[self.kind] and self._is_set(key):
                owner = next(kind for kind, keys in CHANNEL_KEYS.items() if key in keys)
                raise SetupError(f"{key} is for kind = {owner!r}, not for {self.kind!r}: leave it out")
        checks = {"webhook": self._check_webhook, "email": self._check_email, "log": self._check_log}
        checks[self.kind]()

    def _is_set(self, name: str) -> bool:
        default = {"format": "json", "security": "starttls"}.get(name)
        value = getattr(self, name)
        return bool(value) and value != default

    def _check_webhook(self) -> None:
        _check_setting(self, "url")
        _require_one_of("format", self.format, tuple(FORMATS))
        if not self.url.startswith(("http://", "https://", "${")):
            raise SetupError("url must begin with http:// or https://, or be a variable such as ${SLACK_WEBHOOK}")
        for name in self.headers:
            if fault := describe_header_problem(name):
                raise SetupError(f"headers: {fault}")
        if self.secret and self.format not in SIGNERS:
            raise SetupError(f"secret signs messages to {' and '.join(SIGNERS)}; format {self.format!r} has none")

    def _check_email(self) -> None:
        for name in ("host", "sender", "to"):
            _check_setting(self, name)
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

    def _check_log(self) -> None:
        parts = PurePosixPath(self.path).parts
        if self.path and (not parts or self.path.startswith("/") or ".." in parts or "\0" in self.path):
            raise SetupError(f"path must be inside the project's folder, such as 'notices.jsonl', not {self.path!r}")


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


def _check_setting(channel: ChannelConfig, name: str) -> None:
    if not getattr(channel, name):
        raise SetupError(f"a channel of kind {channel.kind!r} needs {name}")


def _require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SetupError(f"{name} must be one of {', '.join(choices)}, not {value!r}.{did_you_mean(value, choices)}")


def parse_address(text: str) -> Address:
    """A mail address, `ops@example.com` or `运维 <ops@example.com>`; raises SetupError for anything else."""
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
