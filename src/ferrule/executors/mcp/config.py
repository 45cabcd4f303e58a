"""How to reach an MCP server: a program to start, or an address to connect to.

It is read from an entry of `mcp.json` as Claude Desktop, Cursor and VS Code write them, or from an `MCPServerSpec`.
`${VAR}` stays as written until the server is started, so that no secret gets into lists, records or digests.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from ferrule.content import as_text, encode_json
from ferrule.errors import SpecError
from ferrule.executors.variables import expand_variables
from ferrule.names import did_you_mean
from ferrule.spec import MCPServerSpec

Kind: TypeAlias = Literal["stdio", "http", "sse", "ws"]

START_TIMEOUT: Final = 60.0
"""Seconds a server has to start: `npx` and `uvx` may have to download it first."""

_KINDS: Final[dict[str, Kind]] = {
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
_INHERITED: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"}
    # What programs that fetch something need on machines behind a proxy.
    | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
)
_OTHER_SPELLING = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """One server, as its file or spec describes it."""

    command: str | None = None
    """The program to start; None for a server that runs already."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the program gets besides a few harmless variables of ours."""
    cwd: str | None = None
    url: str | None = None
    kind: Kind | None = None
    """None for an http address that does not say: streamable HTTP is tried, then SSE."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    """Seconds one call may take."""
    start_timeout: float = START_TIMEOUT
    attempts: int = 1
    """How often to try to connect before a call is given up."""
    disabled: bool = False
    folder: Path | None = None
    """The folder of the file that names it: where the program is started, and relative paths begin."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The ways to reach it, in the order to try them."""
        if self.kind is not None:
            return (self.kind,)
        if self.command is not None:
            return ("stdio",)
        address = (self.url or "").lower()
        if address.startswith(("ws:", "wss:")):
            return ("ws",)
        return ("sse", "http") if address.split("?")[0].rstrip("/").endswith("/sse") else ("http", "sse")

    @property
    def where(self) -> str:
        """For messages: the command or the address, without what may be secret in it."""
        return self.command if self.command is not None else re.sub(r"//[^/@]*@", "//", self.url or "").split("?")[0]

    @property
    def digest(self) -> str:
        """Changes when another server may be meant."""
        said = [self.command, self.args, self.env, self.cwd, self.url, self.kind, self.headers, self.folder]
        return sha256(encode_json(said, sort_keys=True)).hexdigest()[:16]

    def expanded(self, environ: Mapping[str, str]) -> McpServerConfig:
        """With the values of variables; SetupError when one is not set."""
        return self.with_plain_variables()._with_texts(lambda text: expand_variables(text, environ))

    def with_plain_variables(self) -> McpServerConfig:
        """With `${env:VAR}` written as `${VAR}`."""
        return self._with_texts(lambda text: _OTHER_SPELLING.sub(r"${\1}", text))

    def _with_texts(self, change: Callable[[str], str]) -> McpServerConfig:
        return replace(
            self,
            command=None if self.command is None else change(self.command),
            args=tuple(map(change, self.args)),
            env={name: change(text) for name, text in self.env.items()},
            cwd=None if self.cwd is None else change(self.cwd),
            url=None if self.url is None else change(self.url),
            headers={name: change(text) for name, text in self.headers.items()},
        )

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """All the variables the program gets."""
        inherited = {k: v for k, v in environ.items() if k in _INHERITED or k.startswith(("LC_", "XDG_"))}
        return inherited | dict(self.env)

    @property
    def directory(self) -> str | None:
        """Where the program is started."""
        folder = "" if self.folder is None else str(self.folder)
        return os.path.join(folder, os.path.expanduser(self.cwd or "")).rstrip("/") or None

    def described(self) -> dict[str, Any]:
        """What a spec may show of it: no arguments, and of variables and headers only the names."""
        said = {
            "command": self.command,
            "env": sorted(self.env),
            "cwd": self.cwd,
            "type": self.kind,
            "headers": sorted(self.headers),
        }
        return {key: value for key, value in said.items() if value}


def read_server(entry: Any, *, folder: Path | None = None) -> McpServerConfig:
    """An entry of `mcp.json`; SpecError says what is wrong with it. Keys nobody knows are passed over."""
    if not isinstance(entry, Mapping):
        raise SpecError(
            f'a server must be described by an object such as {{"command": "uvx"}}, not a {type(entry).__name__}'
        )
    url = _text(entry, "url") or _text(entry, "serverUrl") or _text(entry, "httpUrl")
    command = _text(entry, "command")
    if bool(command) == bool(url):
        raise SpecError('a server needs either "command" (a program to start) or "url" (an address to connect to)')
    kind = _kind(entry)
    if url and kind == "stdio":
        raise SpecError('"type": "stdio" is for servers with a "command", not for those with a "url"')
    if command and kind not in (None, "stdio"):
        raise SpecError(f'"type": {kind!r} is for servers with a "url", not for those with a "command"')
    if url and "://" not in url and "${" not in url:
        raise SpecError(f"the url {url.split('?')[0]!r} is no address; write one such as https://example.com/mcp")
    return McpServerConfig(
        command=command,
        args=_texts(entry, "args"),
        env=_mapping(entry, "env"),
        cwd=_text(entry, "cwd"),
        url=url,
        kind=kind,
        headers=_mapping(entry, "headers"),
        timeout=_seconds(entry),
        disabled=entry.get("disabled") is True or entry.get("enabled") is False,
        folder=folder,
    )


def config_of_spec(spec: MCPServerSpec) -> McpServerConfig:
    """The server a spec describes: its `endpoint`, or the `command` or `url` in its `server_config`."""
    said = dict(spec.server_config)
    if spec.endpoint:
        said["url"] = spec.endpoint
    said.setdefault("headers", spec.connection_params.get("headers") or {})
    try:
        config = read_server(said)
    except SpecError as error:
        raise SpecError(f"MCP server {spec.tool_id!r}: {error}") from None
    timeout, retries = spec.connection_params.get("timeout"), spec.connection_params.get("retry_count", 0)
    return replace(
        config,
        start_timeout=timeout if _is_positive(timeout) else START_TIMEOUT,
        attempts=1 + (retries if isinstance(retries, int) and retries > 0 else 0),
    )


def _kind(entry: Mapping[str, Any]) -> Kind | None:
    said = _text(entry, "type") or _text(entry, "transport")
    if said is None:
        return "http" if entry.get("httpUrl") else None
    kind = _KINDS.get(said.lower())
    if kind is None:
        raise SpecError(f'"type" cannot be {said!r}; it is stdio, http, sse or ws{did_you_mean(said, _KINDS)}')
    return kind


def _text(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise SpecError(f'"{key}" must be text, not a {type(value).__name__}')
    return value or None


def _texts(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = entry.get(key) or ()
    if isinstance(value, str) or not isinstance(value, Sequence) or any(isinstance(v, (dict, list)) for v in value):
        raise SpecError(f'"{key}" must be a list of texts such as ["-y", "some-server"]')
    return tuple(as_text(item) for item in value)


def _mapping(entry: Mapping[str, Any], key: str) -> dict[str, str]:
    value = entry.get(key) or {}
    if not isinstance(value, Mapping) or any(isinstance(v, (dict, list)) for v in value.values()):
        raise SpecError(f'"{key}" must be an object of texts such as {{"NAME": "value"}}')
    return {str(name): as_text(item) for name, item in value.items() if item is not None}


def _seconds(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("timeout")
    if value is None:
        return None
    if not _is_positive(value):
        raise SpecError(f'"timeout" must be a number of milliseconds, not {value!r}')
    return float(value) / 1000


def _is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
