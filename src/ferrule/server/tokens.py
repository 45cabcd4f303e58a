"""Access tokens, what their holders may do, and the log of what administrators have done.

A token is shown once; the store has only its hash. Calls and approvals have their own records.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

from ferrule.core.names import did_you_mean
from ferrule.core.permission import PLANNER_PRINCIPAL, EffectTier, Principal
from ferrule.errors import SetupError
from ferrule.store import ToolKnowledgeStore
from ferrule.store import tokens as table
from ferrule.store.entry_streams import find_last_entries

Role: TypeAlias = Literal["viewer", "caller", "approver", "admin"]
Permission: TypeAlias = Literal["read", "call", "approve", "administer"]

LOCAL_AGENT: Final = Principal(kind="agent", name="orchestrator")
"""Who makes the calls of runs that no token has started."""
TOKEN_PREFIX: Final = "frl_"
SESSION_SECONDS: Final = 12 * 3600.0
DEFAULT_OVERLAP: Final = 24 * 3600.0
"""Seconds for which the earlier secret of a token is valid after the token got another."""
MAX_OVERLAP: Final = 90 * 86_400.0
_PERMISSIONS: Final[dict[Role, frozenset[Permission]]] = {
    "viewer": frozenset({"read"}),
    "caller": frozenset({"read", "call"}),
    "approver": frozenset({"read", "approve"}),
    "admin": frozenset(get_args(Permission)),
}
ROLES: Final = tuple(_PERMISSIONS)
MAX_NAME_LENGTH: Final = 100


@dataclass(frozen=True, kw_only=True)
class AccessToken:
    """What the holder of a token may do."""

    token_id: str
    name: str
    display_name: str = ""
    """How to address a user of an issuer, who may have chosen it: nothing else is decided by it."""
    roles: frozenset[Role]
    tools: frozenset[str] | None = None
    """The only tools it may use: ids or patterns. None = all."""
    max_effect: EffectTier = "destructive"
    tenant: str = ""
    """Whose data it sees: runs, calls and approvals of other tenants are hidden. An admin without a tenant sees all."""
    calls_per_minute: float | None = None
    max_concurrent: int | None = None
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    parent_id: str | None = None
    """Of a session: the token it was created with."""
    is_external: bool = False
    """Whether it is a token of an identity provider."""

    @property
    def root_id(self) -> str:
        """Return the token itself, or the one that a session was created with."""
        return self.parent_id or self.token_id

    @property
    def account(self) -> str:
        """Return the account whose credentials the calls use: of the token's name, or of the user of an issuer."""
        return f"oauth:{self.tenant}/{self.root_id}" if self.is_external else f"token:{self.tenant}/{self.name}"

    @cached_property
    def principal(self) -> Principal:
        return Principal(
            kind="token",
            name=self.name,
            roles=frozenset(self.roles),
            tools=self.tools,
            max_effect=self.max_effect,
            tenant=self.tenant,
            account=self.account,
            client_id=self.root_id,
        )

    @cached_property
    def agent_principal(self) -> Principal:
        """Return who makes the calls that a model chooses for the client."""
        return replace(self.principal, kind="agent")

    def may(self, permission: Permission) -> bool:
        return any(permission in _PERMISSIONS[role] for role in self.roles)

    @property
    def sees_all_tenants(self) -> bool:
        return not self.tenant and "admin" in self.roles

    def to_dict(self) -> dict[str, Any]:
        described = {name: getattr(self, name) for name in _SHOWN}
        return described | {"roles": sorted(self.roles), "tools": None if self.tools is None else sorted(self.tools)}


_SHOWN: Final = (
    *("token_id", "name", "display_name", "roles", "tools", "max_effect", "tenant", "calls_per_minute"),
    *("max_concurrent", "created_at", "expires_at", "revoked_at"),
)


class Tokens:
    """The tokens of a store."""

    def __init__(self, store: ToolKnowledgeStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    async def create(
        self,
        name: str,
        *,
        roles: Collection[str] = ("caller",),
        tools: Collection[str] | None = None,
        max_effect: EffectTier = "destructive",
        tenant: str = "",
        calls_per_minute: float | None = None,
        max_concurrent: int | None = None,
        expires_in: float | None = None,
    ) -> tuple[AccessToken, str]:
        """Create a token. Returns the token with its secret text, which cannot be read later."""
        _check_name(name, "name")
        if tenant:
            _check_name(tenant, "tenant")
        elif name in (LOCAL_AGENT.name, PLANNER_PRINCIPAL.name):
            raise SetupError(
                f"{name!r} is the agent of this machine, whose runs are not those of a token. Choose another."
            )
        for role in roles:
            if role not in _PERMISSIONS:
                raise SetupError(
                    f"There is no role {role!r}.{did_you_mean(role, _PERMISSIONS)} "
                    f"Write one of: {', '.join(_PERMISSIONS)}."
                )
        for limit, value in (("calls_per_minute", calls_per_minute), ("max_concurrent", max_concurrent)):
            if value is not None and not value > 0:
                raise SetupError(f"{limit} must be more than 0, not {value!r}.")
        if expires_in is not None and not expires_in > 0:
            raise SetupError("A token must expire in the future.")
        Principal(kind="token", name=name, tools=None if tools is None else frozenset(tools), max_effect=max_effect)
        now = self._clock()
        grants = {
            "roles": sorted(set(roles)),
            "tools": None if tools is None else sorted(tools),
            "max_effect": max_effect,
            "tenant": tenant,
            "calls_per_minute": calls_per_minute,
            "max_concurrent": max_concurrent,
        }
        row, text = _make_row(name, grants, now, None if expires_in is None else now + expires_in, parent_id=None)
        if not await self._store.query_without_records(table.insert_token, row):
            raise SetupError(f"There is already a token {name!r}. Revoke it first, or choose another name.")
        return _from_row(row), text

    async def create_session(self, token: AccessToken) -> str:
        """Create a secret text with the rights of a token, for a browser.

        The session ends with the token at the latest. A session that a session creates ends no later than its creator.
        """
        row, text = self._make_session_row(token, SESSION_SECONDS)
        await self._store.query_without_records(table.insert_token, row)
        return text

    async def rotate(self, token: AccessToken, overlap: float) -> str:
        """Give a token another secret text, and return that text. All else about the token stays.

        The earlier text, and sessions that were opened before, are valid for `overlap` seconds more at most.
        """
        if not 0 <= overlap <= MAX_OVERLAP:
            raise SetupError(f"The earlier secret may stay valid for up to {MAX_OVERLAP / 86_400:g} days.")
        row, text = self._make_session_row(token, overlap)
        if not await self._store.query_without_records(table.replace_secret, token.token_id, row):
            raise SetupError(f"The token {token.name!r} is not valid any more.")
        return text

    def _make_session_row(self, token: AccessToken, seconds: float) -> tuple[dict[str, Any], str]:
        now = self._clock()
        expires_at = now + seconds if token.expires_at is None else min(now + seconds, token.expires_at)
        grants = {k: v for k, v in token.to_dict().items() if k not in ("token_id", "name") and not k.endswith("_at")}
        return _make_row(token.name, grants, now, expires_at, parent_id=token.root_id)

    async def find(self, text: str) -> AccessToken | None:
        """Find the valid token or session with this secret text."""
        row = await self._store.query_without_records(table.find_token, hash_token(text), self._clock())
        return None if row is None else _from_row(row)

    async def find_by_name(self, name_or_id: str) -> AccessToken:
        """Find the valid token with a name or an id. Raises SetupError if there is none."""
        for token in await self.list_tokens():
            if name_or_id in (token.name, token.token_id) and self.is_valid(token):
                return token
        raise SetupError(f"There is no valid token {name_or_id!r}. `ferrule tokens list` shows them.")

    async def list_tokens(self, *, with_external_sessions: bool = False) -> list[AccessToken]:
        """List all tokens, and on request the sessions of users of an issuer."""
        rows = await self._store.query_without_records(table.list_tokens, with_external_sessions=with_external_sessions)
        return [_from_row(row) for row in rows]

    def is_valid(self, token: AccessToken) -> bool:
        return token.revoked_at is None and (token.expires_at is None or token.expires_at > self._clock())

    async def any_exist(self) -> bool:
        """Return whether a token was ever created, also if it has expired: from then on clients need one."""
        return await self._store.query_without_records(table.has_token)

    async def revoke(self, name_or_id: str) -> None:
        if not await self._store.query_without_records(table.revoke_token, name_or_id, self._clock()):
            raise SetupError(f"There is no valid token {name_or_id!r}. `ferrule tokens list` shows them.")


def hash_token(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def is_valid_name(value: str) -> bool:
    """Return whether a text can be the name or tenant of a token, by which records and streams are told apart."""
    return 0 < len(value) <= MAX_NAME_LENGTH and all(c.isalnum() or c in "-_." for c in value)


def _check_name(value: str, kind: str) -> None:
    if not is_valid_name(value):
        raise SetupError(f"The {kind} of a token has letters, digits, '-', '_' and '.', not {value!r}.")


def _make_row(
    name: str, grants: dict[str, Any], now: float, expires_at: float | None, *, parent_id: str | None
) -> tuple[dict[str, Any], str]:
    """Make the row of a token or a session, and its secret text."""
    text = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = {
        "token_id": uuid4().hex[:12],
        "hash": hash_token(text),
        "parent_id": parent_id,
        "name": name,
        "grants": json.dumps(grants),
        "created_at": now,
        "expires_at": expires_at,
        "revoked_at": None,
    }
    return row, text


def _from_row(row: dict[str, Any]) -> AccessToken:
    grants = json.loads(row["grants"])
    grants["roles"] = frozenset(grants["roles"])
    grants["tools"] = None if grants["tools"] is None else frozenset(grants["tools"])
    names = ("token_id", "name", "created_at", "expires_at", "revoked_at", "parent_id")
    is_external = (row["parent_id"] or "").startswith(table.EXTERNAL_PREFIX)
    return AccessToken(**grants, **{name: row[name] for name in names}, is_external=is_external)


# Who administered the server: tokens, tools, what was accepted and forgotten. Entries are only ever added.

AUDIT_STREAM: Final = "audit"
AuditedAction: TypeAlias = Literal[
    "create_token",
    "rotate_token",
    "revoke_token",
    "enable_tool",
    "disable_tool",
    "register_tool",
    "accept_changes",
    "pin_failure",
    "unpin_failure",
    "forget_failures",
]


class AuditLog:
    """The entries of a store."""

    def __init__(self, store: ToolKnowledgeStore) -> None:
        self._store = store

    async def write(self, principal: Principal, action: AuditedAction, subject: str, **details: Any) -> None:
        """Add what a principal has done. The entry is stored when this returns."""
        now, tenant = time.time(), principal.tenant
        entry = {"at": now, "by": principal.label, "tenant": tenant, "action": action, "subject": subject}
        entry["details"] = details
        stream = f"{AUDIT_STREAM}:{tenant}" if tenant else AUDIT_STREAM
        self._store.write_entry(stream, f"{now:017.6f}-{uuid4().hex[:8]}", self._store.redaction.redact(entry))
        await self._store.flush()

    async def read(self, *, tenant: str | None, limit: int) -> list[dict[str, Any]]:
        """Read the latest entries of a tenant, or of all tenants with None, the newest first."""
        stream = f"{AUDIT_STREAM}:{tenant}" if tenant else AUDIT_STREAM
        return await self._store.query(find_last_entries, stream, limit, with_children=tenant is None)
