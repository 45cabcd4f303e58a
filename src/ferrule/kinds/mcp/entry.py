"""One entry of `mcp.json`, as Claude Desktop, Cursor, VS Code and Windsurf write it.

A module of its own, because pydantic is imported only when an entry is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ferrule.core.content import as_text
from ferrule.core.names import did_you_mean
from ferrule.errors import SpecError
from ferrule.kinds.mcp.config import MAX_ACTIONS, MAX_MESSAGE_SIZE, NEVER_PASSED, OAuthClientConfig, TransportKind

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
_EXPECTED_VALUES: Final = {
    "args": 'must be a list of texts such as ["-y", "some-server"]',
    "env": 'must be an object of texts such as {"NAME": "value"}',
    "headers": 'must be an object of texts such as {"NAME": "value"}',
    "timeout": "must be a number of milliseconds",
    "maxActions": "must be a whole number of actions",
    "maxMessageSize": "must be a whole number of bytes",
    "oauth": "must have texts; the grant client_credentials needs clientId, clientSecret and issuer",
    "passHeaders": 'must be a list of names such as ["X-Request-Id"]',
    "tags": 'must be a list of texts such as ["search"], or one for each action such as {"find": ["search"]}',
}


def _convert_scalar_to_text(value: Any) -> str:
    """Numbers and booleans are accepted where text is expected, as other clients do."""
    if isinstance(value, (dict, list)):
        raise ValueError("must be text")
    return as_text(value)


def _remove_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: text for name, text in value.items() if text is not None}
    return value or {}


_Text = Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)]
_ScalarText = Annotated[str, BeforeValidator(_convert_scalar_to_text)]
_Texts = Annotated[tuple[_ScalarText, ...], BeforeValidator(lambda value: value or ())]
_NamedTexts = Annotated[dict[str, _ScalarText], BeforeValidator(_remove_nulls)]


class OAuthEntry(BaseModel):
    """How to log in at a server, as Claude Code (`oauth`) and Cursor (`auth`) write it."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    client_id: _Text = Field(None, validation_alias=AliasChoices("clientId", "CLIENT_ID", "client_id"))
    client_secret: _Text = Field(None, validation_alias=AliasChoices("clientSecret", "CLIENT_SECRET", "client_secret"))
    client_metadata_url: _Text = Field(None, alias="clientMetadataUrl", pattern=r"^https://[^/]+/.+")
    scopes: Annotated[_Text, BeforeValidator(lambda value: " ".join(value) if isinstance(value, list) else value)] = (
        None
    )
    issuer: _Text = None
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    callback_port: int | None = Field(None, alias="callbackPort", gt=0, lt=65_536)

    @model_validator(mode="after")
    def _check(self) -> OAuthEntry:
        if self.grant == "client_credentials" and not (self.client_id and self.client_secret and self.issuer):
            raise ValueError("the grant client_credentials needs clientId, clientSecret and issuer")
        return self


class McpServerEntry(BaseModel):
    """How to reach one server. Keys that are not known here are ignored: other clients have their own."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    command: _Text = None
    args: _Texts = ()
    env: _NamedTexts = Field(default_factory=dict)
    cwd: _Text = None
    url: _Text = None
    server_url: _Text = Field(None, alias="serverUrl")
    http_url: _Text = Field(None, alias="httpUrl")
    type: _Text = None
    transport: _Text = None
    headers: _NamedTexts = Field(default_factory=dict)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False, strict=True)
    """Milliseconds one call may take."""
    max_actions: int = Field(MAX_ACTIONS, alias="maxActions", gt=0, strict=True)
    max_message_size: int = Field(MAX_MESSAGE_SIZE, alias="maxMessageSize", gt=0, strict=True)
    """Bytes."""
    disabled: Any = False
    enabled: Any = True
    trusted: Any = False
    auto_approve: Any = Field(None, alias="autoApprove")
    always_allow: Any = Field(None, alias="alwaysAllow")
    oauth: Annotated[
        OAuthEntry | None, BeforeValidator(lambda value: value if isinstance(value, Mapping) else None)
    ] = Field(None, validation_alias=AliasChoices("oauth", "auth"))
    stateful: Any = False
    pass_headers: _Texts = Field((), alias="passHeaders")
    """Names of headers of MCP clients that are passed on to the server."""
    tags: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    """Of the server, or of its actions by their names."""

    @property
    def address(self) -> str | None:
        return self.url or self.server_url or self.http_url

    @property
    def is_disabled(self) -> bool:
        return self.disabled is True or self.enabled is False

    @property
    def oauth_client(self) -> OAuthClientConfig | None:
        if self.oauth is None:
            return None
        values = self.oauth.model_dump()
        return OAuthClientConfig(scope=values.pop("scopes"), **values)

    @property
    def approved_actions(self) -> frozenset[str]:
        """The actions that need no approval, as Cline and Roo Code write them; `*` for all."""
        lists = [[value] if value == "*" else value for value in (self.auto_approve, self.always_allow)]
        return frozenset(name for names in lists if isinstance(names, list) for name in names if isinstance(name, str))

    @property
    def transport_kind(self) -> TransportKind | None:
        name = self.type or self.transport
        if name is None:
            return "http" if self.http_url else None
        kind = _TRANSPORT_NAMES.get(name.lower())
        if kind is None:
            hint = did_you_mean(name, _TRANSPORT_NAMES)
            raise ValueError(f'"type" cannot be {name!r}; it is stdio, http, sse or ws{hint}')
        return kind

    @model_validator(mode="after")
    def _check(self) -> McpServerEntry:
        address, kind = self.address, self.transport_kind
        if bool(self.command) == bool(address):
            raise ValueError('a server needs either "command" (a program to start) or "url" (an address to connect to)')
        if address and kind == "stdio":
            raise ValueError('"type": "stdio" is for servers with a "command", not for those with a "url"')
        if self.command and kind not in (None, "stdio"):
            raise ValueError(f'"type": {kind!r} is for servers with a "url", not for those with a "command"')
        for name in self.pass_headers:
            if NEVER_PASSED.match(name) or not re.fullmatch(r"[A-Za-z0-9-]+", name):
                raise ValueError(f'"passHeaders" cannot have {name!r}: no server is passed this header of a client')
        if address and "://" not in address and "${" not in address:
            without_query = address.split("?")[0]
            raise ValueError(f"the url {without_query!r} is not an address; write one such as https://example.com/mcp")
        return self


def validate_server_entry(entry: Any) -> McpServerEntry:
    """Check an entry; SpecError says what is wrong with it."""
    if not isinstance(entry, Mapping):
        example = '{"command": "uvx"}'
        raise SpecError(f"a server must be described by an object such as {example}, not a {type(entry).__name__}")
    try:
        return McpServerEntry.model_validate(entry)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    if not problem["loc"]:
        raise SpecError(str(problem["ctx"]["error"]))
    key = str(problem["loc"][0])
    # Numbers may be shown; other values may hold a secret.
    is_number = key in ("timeout", "maxActions", "maxMessageSize")
    value = repr(entry.get(key)) if is_number else f"a {type(entry.get(key)).__name__}"
    raise SpecError(f'"{key}" {_EXPECTED_VALUES.get(key, "must be text")}, not {value}')
