"""How to reach an MCP server: a program to start, or an address to connect to.

It comes from an entry of `mcp.json` or from an `MCPServerSpec`. `${VAR}` stays as written until the server is started,
so that no secret gets into lists, records or digests.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeGuard, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ferrule.core.content import as_text, encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.secret_patterns import secret_names
from ferrule.core.secrets import Secrets, select_likely
from ferrule.core.spec import Limits, MCPServerSpec
from ferrule.core.variables import expand_variables, find_variables
from ferrule.errors import SpecError

TransportKind: TypeAlias = Literal["stdio", "http", "sse", "ws"]
T = TypeVar("T")

MAX_ACTIONS: Final = 5_000
"""Actions of one server, unless its entry says otherwise."""
MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
"""Bytes of one message of a server, unless its entry says otherwise."""
MAX_CALL_SECONDS: Final = 600.0
"""How long a call may take that reports progress, unless the entry says otherwise."""
START_TIMEOUT: Final = 60.0
"""Seconds a server has to start: `npx` and `uvx` may have to download it first."""

SERVING_VARIABLE: Final = "FERRULE_SERVING"
"""The folders and files that a Ferrule and those that started it serve, so that none serves itself."""
_INHERITED_VARIABLES: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR", SERVING_VARIABLE}
    # What programs that fetch something need on machines behind a proxy.
    | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
)
ENV_VARIABLE: Final = lazy_pattern(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
"""VS Code's spelling of `${VAR}`."""
CREDENTIAL: Final = lazy_pattern(r"\$\{credential:([A-Za-z0-9][A-Za-z0-9._-]{0,99})\}")
"""The credential of the caller, in a header or a variable of a server."""

NEVER_PASSED: Final = lazy_pattern(
    r"(authorization|cookie|host|origin|referer|connection|forwarded|expect|te|trailer|upgrade|keep-alive|user-agent"
    r"|content-.*|accept.*|transfer-.*|proxy-.*|x-forwarded-.*|x-real-ip|mcp-.*|sec-.*)\Z",
    re.IGNORECASE,
)
"""Headers of a client that no server behind Ferrule gets: what proves who the client is, and what describes the
connection or the message."""


class LoginHandler(Protocol):
    """Lets a person log in at an authorization server."""

    redirect_uri: str
    """Where the person's browser is sent afterwards."""

    async def show(self, url: str, /) -> str:
        """Show a page; returns the address that the browser was sent to in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClientConfig:
    """How Ferrule logs in at a server, where that is not found out by itself."""

    client_id: str | None = None
    """None: Ferrule registers itself."""
    client_secret: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    """Where a description of the client is published, for authorization servers that accept its address as id."""
    scope: str | None = None
    issuer: str | None = None
    """The only authorization server that gets the secret."""
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`client_credentials`: without a person."""
    callback_port: int | None = None
    """Where the browser is sent after the login, on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """One server, as its file or spec describes it."""

    command: str | None = None
    """The program to start; None for a server that already runs."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the program, besides the few harmless ones it inherits."""
    cwd: str | None = None
    url: str | None = None
    kind: TransportKind | None = None
    """None for an http address without a type: streamable HTTP is tried, then SSE."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    """Seconds one call may take, again after each report of progress."""
    max_timeout: float | None = None
    """Seconds one call may take in all; None: MAX_CALL_SECONDS, or the timeout if it is longer."""
    action_max_timeouts: Mapping[str, float] = field(default_factory=dict)
    """The same for single actions."""
    start_timeout: float = START_TIMEOUT
    attempts: int = 1
    """How many times a call tries to connect before it fails."""
    max_actions: int = MAX_ACTIONS
    """More actions are ignored."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Bytes; a larger message ends the connection."""
    disabled: bool = False
    trusted: bool = field(default=False, compare=False)
    """What the server claims about the effects of its actions is believed."""
    auto_approve: frozenset[str] = field(default=frozenset(), compare=False)
    """Actions that need no approval; `*` for all."""
    tags: tuple[str, ...] = field(default=(), compare=False)
    action_tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Tags of actions, by their names."""
    credential_names: tuple[str, ...] = ()
    """The credentials of callers that its headers and variables contain: each caller has a separate connection."""
    oauth: OAuthClientConfig | None = None
    pass_headers: tuple[str, ...] = ()
    """The headers of MCP clients that are passed on to it."""
    is_stateful: bool = field(default=False, compare=False)
    """What one call does matters to the next: of several servers of a store, one has its process for all."""
    peer_socket: str | None = None
    """For another server of the store: the private socket at which it listens, or empty for its address. Any other
    server has None, and is reached through the proxy that the environment names."""
    folder: Path | None = None
    """The folder of the file that names it: the program is started there, and relative paths begin there."""

    @property
    def transport_kinds(self) -> tuple[TransportKind, ...]:
        if self.kind is not None:
            return (self.kind,)
        if self.command is not None:
            return ("stdio",)
        address = (self.url or "").lower()
        if address.startswith(("ws:", "wss:")):
            return ("ws",)
        return ("sse", "http") if address.split("?")[0].rstrip("/").endswith("/sse") else ("http", "sse")

    def limits_of(self, action: str = "") -> Limits:
        """Return how long the calls of an action may take; without a name, those of actions without own limits."""
        longest = self.action_max_timeouts.get(action, self.max_timeout)
        return Limits(timeout=self.timeout, max_timeout=longest or max(MAX_CALL_SECONDS, self.timeout or 0))

    @property
    def location(self) -> str:
        """Return the command or the address for messages, without user name, password and query."""
        return self.command if self.command is not None else re.sub(r"//[^/@]*@", "//", self.url or "").split("?")[0]

    @property
    def digest(self) -> str:
        """Return a digest that changes when the entry may describe another server."""
        identity: list[Any] = [self.command, self.args, self.env, self.cwd, self.url, self.kind, self.headers]
        identity += [self.folder] if self.oauth is None else [self.folder, asdict(self.oauth)]
        return sha256(encode_json(identity, sort_keys=True)).hexdigest()[:16]

    @property
    def trust_digest(self) -> str:
        """Return a digest that changes when the entry may run something else, or gives the server more rights."""
        identity = [self.digest, self.trusted, sorted(self.auto_approve)]
        identity += [sorted(self.pass_headers)] if self.pass_headers else []
        return sha256(encode_json(identity)).hexdigest()[:32]

    @property
    def directory(self) -> str | None:
        folder = "" if self.folder is None else str(self.folder)
        return os.path.join(folder, os.path.expanduser(self.cwd or "")).rstrip("/") or None

    def expand(
        self, environ: Mapping[str, str], credentials: Mapping[str, str] = MappingProxyType({})
    ) -> McpServerConfig:
        """Replace variables and the names of credentials by their values; SetupError when a variable is not set."""

        def fill(text: str) -> str:
            # In one pass: a credential is what a user has chosen, and must not read variables.
            pieces = CREDENTIAL.split(text)
            for number, piece in enumerate(pieces):
                is_name = number % 2 and piece in credentials
                pieces[number] = credentials[piece] if is_name else expand_variables(piece, environ)
            return "".join(pieces)

        return self.with_plain_variables()._map_texts(fill)

    def with_plain_variables(self) -> McpServerConfig:
        """Write `${env:VAR}` as `${VAR}`."""
        return self._map_texts(lambda text: ENV_VARIABLE.sub(r"${\1}", text))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        inherited = {k: v for k, v in environ.items() if k in _INHERITED_VARIABLES or k.startswith(("LC_", "XDG_"))}
        return inherited | dict(self.env)

    def public_summary(self) -> dict[str, Any]:
        """Return what a spec may show: no arguments, and of variables and headers only the names."""
        summary = {"command": self.command, "env": sorted(self.env), "cwd": self.cwd, "type": self.kind}
        summary["headers"] = sorted(self.headers)
        return {key: value for key, value in summary.items() if value}

    def _map_texts(self, change: Callable[[str], str]) -> McpServerConfig:
        oauth = self.oauth
        if oauth is not None:
            names = ("client_id", "client_secret", "scope", "issuer")
            texts: dict[str, Any] = {n: change(text) for n in names if (text := getattr(oauth, n)) is not None}
            oauth = replace(oauth, **texts)
        return replace(
            self,
            command=None if self.command is None else change(self.command),
            args=tuple(map(change, self.args)),
            env={name: change(text) for name, text in self.env.items()},
            cwd=None if self.cwd is None else change(self.cwd),
            url=None if self.url is None else change(self.url),
            headers={name: change(text) for name, text in self.headers.items()},
            oauth=oauth,
        )


# Entries of `mcp.json`, as Claude, Cursor, VS Code, Windsurf, Gemini, Cline and Roo Code write them. Keys that are not
# known here are ignored: other programs have their own.

_TRANSPORT_NAMES: Final[dict[str, TransportKind]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
    "sse": "sse",
    "ws": "ws",
    "wss": "ws",
    "websocket": "ws",
}


def read_server_config(entry: Any, *, folder: Path | None = None) -> McpServerConfig:
    """Read an entry of `mcp.json`. Raises SpecError, which says what is wrong with the entry."""
    if not isinstance(entry, Mapping):
        example = '{"command": "uvx"}'
        raise SpecError(f"a server must be described by an object such as {example}, not a {type(entry).__name__}")
    timeout, max_timeout = _read(entry, "timeout"), _read(entry, "maxTimeout", {})
    max_timeouts = max_timeout if isinstance(max_timeout, dict) else {"*": max_timeout}
    tags, command = _read(entry, "tags", ()), _read(entry, "command")
    # Actions that need no approval, as Cline (`autoApprove`) and Roo Code (`alwaysAllow`) write them.
    approved = [["*"] if names == "*" else names for names in (entry.get("autoApprove"), entry.get("alwaysAllow"))]
    config = McpServerConfig(
        command=command,
        args=_read(entry, "args", ()),
        env=_read(entry, "env", {}),
        cwd=_read(entry, "cwd"),
        url=_read(entry, "url") or _read(entry, "serverUrl") or _read(entry, "httpUrl"),
        kind=_read_transport_kind(entry),
        headers=_read(entry, "headers", {}),
        timeout=None if timeout is None else timeout / 1000,
        max_timeout=max_timeouts["*"] / 1000 if "*" in max_timeouts else None,
        action_max_timeouts={name: each / 1000 for name, each in max_timeouts.items() if name != "*"},
        max_actions=_read(entry, "maxActions", MAX_ACTIONS),
        max_message_size=_read(entry, "maxMessageSize", MAX_MESSAGE_SIZE),
        disabled=entry.get("disabled") is True or entry.get("enabled") is False,
        trusted=entry.get("trusted") is True,
        auto_approve=frozenset(
            name for names in approved if isinstance(names, list) for name in names if isinstance(name, str)
        ),
        tags=() if isinstance(tags, dict) else tags,
        action_tags=tags if isinstance(tags, dict) else {},
        oauth=_read(entry, "oauth" if "oauth" in entry else "auth"),
        pass_headers=_read(entry, "passHeaders", ()),
        is_stateful=entry.get("stateful") is True and command is not None,
        folder=folder,
    )
    _check(config)
    texts = (*config.headers.values(), *config.env.values())
    names = tuple(dict.fromkeys(name for text in texts for name in CREDENTIAL.findall(text)))
    return replace(config, credential_names=names) if names else config


def _check(config: McpServerConfig) -> None:
    if bool(config.command) == bool(config.url):
        raise SpecError('a server needs either "command" (a program to start) or "url" (an address to connect to)')
    if config.url and config.kind == "stdio":
        raise SpecError('"type": "stdio" is for servers with a "command", not for those with a "url"')
    if config.command and config.kind not in (None, "stdio"):
        raise SpecError(f'"type": {config.kind!r} is for servers with a "url", not for those with a "command"')
    for name in config.pass_headers:
        if NEVER_PASSED.match(name) or not re.fullmatch(r"[A-Za-z0-9-]+", name):
            raise SpecError(f'"passHeaders" cannot have {name!r}: no server is passed this header of a client')
    if config.url and "://" not in config.url and "${" not in config.url:
        without_query = config.url.split("?")[0]
        raise SpecError(f"the url {without_query!r} is not an address; write one such as https://example.com/mcp")
    oauth = config.oauth or OAuthClientConfig()
    fixed = (config.command, *config.args, config.cwd, config.url, oauth.client_id, oauth.client_secret, oauth.issuer)
    if any(text and CREDENTIAL.search(text) for text in fixed):  # there a caller must not decide
        raise SpecError("${credential:NAME} can be used in headers and variables (env) only")


def _read(entry: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Read the value of a key. A missing, null or empty value is `default`. Raises SpecError for another type."""
    read, expected = _READERS.get(key, (_read_text, "must be text"))
    value = entry.get(key)
    if value is None or value == "":
        return default
    try:
        return read(value)
    except (TypeError, ValueError, SpecError):
        # Numbers may be shown; other values may hold a secret.
        description = repr(value) if read in (_read_milliseconds, _read_count) else f"a {type(value).__name__}"
        raise SpecError(f'"{key}" {expected}, not {description}') from None


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _read_scalar(value: Any) -> str:
    """Accept numbers and booleans where text is expected, as other programs do."""
    if isinstance(value, (dict, list)):
        raise TypeError
    return as_text(value)


def _read_texts(value: Any) -> tuple[str, ...]:
    if value and not isinstance(value, (list, tuple)):
        raise TypeError
    return tuple(map(_read_scalar, value or ()))


def _read_named_texts(value: Any) -> dict[str, str]:
    if value and not isinstance(value, Mapping):
        raise TypeError
    return {_read_text(name): _read_scalar(text) for name, text in (value or {}).items() if text is not None}


def _read_milliseconds(value: Any) -> float:
    if not _is_positive_number(value):
        raise ValueError
    return value


def _one_or_named(read: Callable[[Any], T]) -> Callable[[Any], T | dict[str, T]]:
    """Return a reader of one value, or of one for each action."""

    def read_value(value: Any) -> T | dict[str, T]:
        if isinstance(value, Mapping):
            return {_read_text(name): read(each) for name, each in value.items()}
        return read(value)

    return read_value


def _read_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


def _read_oauth(value: Any) -> OAuthClientConfig | None:
    """Read how to log in, as Claude Code (`oauth`) and Cursor (`auth`) write it."""
    if not isinstance(value, Mapping):
        return None
    scopes, grant = value.get("scopes"), value.get("grant", "authorization_code")
    oauth = OAuthClientConfig(
        client_id=_read(value, "clientId") or _read(value, "CLIENT_ID") or _read(value, "client_id"),
        client_secret=_read(value, "clientSecret") or _read(value, "CLIENT_SECRET") or _read(value, "client_secret"),
        client_metadata_url=_read(value, "clientMetadataUrl"),
        scope=" ".join(scopes) if isinstance(scopes, list) else _read(value, "scopes"),
        issuer=_read(value, "issuer"),
        grant=grant,
        callback_port=_read(value, "callbackPort"),
    )
    if grant not in ("authorization_code", "client_credentials") or (oauth.callback_port or 0) > 65_535:
        raise ValueError
    if grant == "client_credentials" and not (oauth.client_id and oauth.client_secret and oauth.issuer):
        raise ValueError
    if (address := oauth.client_metadata_url) and not re.match(r"https://[^/]+/.+", address):
        raise ValueError
    return oauth


_READERS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "args": (_read_texts, 'must be a list of texts such as ["-y", "some-server"]'),
    "env": (_read_named_texts, 'must be an object of texts such as {"NAME": "value"}'),
    "headers": (_read_named_texts, 'must be an object of texts such as {"NAME": "value"}'),
    "timeout": (_read_milliseconds, "must be a number of milliseconds"),
    "maxTimeout": (
        _one_or_named(_read_milliseconds),
        'must be a number of milliseconds, or one for each action such as {"build": 3600000}, with "*" for the others',
    ),
    "maxActions": (_read_count, "must be a whole number of actions"),
    "maxMessageSize": (_read_count, "must be a whole number of bytes"),
    "callbackPort": (_read_count, "must be a port"),
    "oauth": (_read_oauth, "must have texts; the grant client_credentials needs clientId, clientSecret and issuer"),
    "auth": (_read_oauth, "must have texts; the grant client_credentials needs clientId, clientSecret and issuer"),
    "passHeaders": (_read_texts, 'must be a list of names such as ["X-Request-Id"]'),
    "tags": (
        _one_or_named(_read_texts),
        'must be a list of texts such as ["search"], or one for each action such as {"find": ["search"]}',
    ),
}
"""How a value is read, and what it must be; other values are texts."""


def _read_transport_kind(entry: Mapping[str, Any]) -> TransportKind | None:
    name = _read(entry, "type") or _read(entry, "transport")
    if name is None:
        return "http" if entry.get("httpUrl") else None
    if name.lower() not in _TRANSPORT_NAMES:
        hint = did_you_mean(name, _TRANSPORT_NAMES)
        raise SpecError(f'"type" cannot be {name!r}; it is stdio, http, sse or ws{hint}')
    return _TRANSPORT_NAMES[name.lower()]


def config_of_spec(spec: MCPServerSpec) -> McpServerConfig:
    """Return the server a spec describes: its `endpoint`, or the `command` or `url` in its `server_config`."""
    entry = dict(spec.server_config)
    if spec.endpoint:
        entry["url"] = spec.endpoint
    entry.setdefault("headers", spec.connection_params.get("headers") or {})
    try:
        config = read_server_config(entry)
    except SpecError as error:
        raise SpecError(f"MCP server {spec.tool_id!r}: {error}") from None
    timeout, retries = spec.connection_params.get("timeout"), spec.connection_params.get("retry_count", 0)
    return replace(
        config,
        start_timeout=timeout if _is_positive_number(timeout) else START_TIMEOUT,
        attempts=1 + (retries if isinstance(retries, int) and retries > 0 else 0),
    )


def _is_positive_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


# Secrets. Servers repeat what they were given, above all in error messages. Hidden are the values of headers, of
# variables and options with a telling name (`API_KEY`, `--token`), and user, password and query of an address. Other
# variables are not hidden: the results of a file server are full of the value of `${PROJECT_FOLDER}`.


def collect_secrets(
    config: McpServerConfig, environ: Mapping[str, str], credentials: Mapping[str, str] = MappingProxyType({})
) -> Secrets:
    """Collect what results and messages of a server must not show. `config` has unfilled variables."""
    plain, expanded = config.with_plain_variables(), config.expand(environ, credentials)
    texts = [plain.command or "", *plain.args, *plain.env.values(), plain.cwd or "", plain.url or ""]
    variables = {name for text in texts for name in find_variables(text) if secret_names().is_secret(name)}
    variables |= {name for text in plain.headers.values() for name in find_variables(text)}
    values = [*credentials.values(), *(environ.get(name, "") for name in variables)]
    values += [text for name, text in expanded.env.items() if secret_names().hides(name, text)]
    for text in expanded.headers.values():
        values += [text, *text.split()]  # of `Bearer abc`, `abc` alone is secret too
    for argument, is_hidden in secret_names().mark_secret_items(expanded.args):
        option, _, value = argument.partition("=")
        if is_hidden:
            values.append(argument)
        elif option.startswith("-") and secret_names().is_label(option.lstrip("-")):
            values.append(value)
    address = urlsplit(expanded.url or "")
    user_info, at, _ = address.netloc.rpartition("@")
    if at:
        user, _, password = user_info.partition(":")
        values += [user_info, unquote(password or user)]
    values += [value for _, value in parse_qsl(address.query)]
    if expanded.oauth is not None:
        values.append(expanded.oauth.client_secret or "")
    return Secrets(select_likely(values))


def find_literal_secrets(config: McpServerConfig) -> list[str]:
    """Return the names of variables and headers whose secret is written out, without a `${VAR}`."""
    named_texts = (*config.env.items(), *config.headers.items())
    return [name for name, text in named_texts if secret_names().hides(name, text) and not find_variables(text)]
