"""The table of access tokens. Only hashes of tokens are stored. A session of a browser is a token with a parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.store.database import StoreDatabase
from ferrule.store.tables import get_table, sa

EXTERNAL_PREFIX = "oauth-"
"""Of the ids of tokens that an identity provider has issued."""


def insert_token(database: StoreDatabase, values: Mapping[str, Any]) -> bool:
    """Insert a token; False when a valid token has the same name."""
    table = get_table("tokens")
    same_name = table.c.name == values["name"]
    is_valid = table.c.revoked_at.is_(None) & table.c.parent_id.is_(None)
    with database.write() as connection:
        if values["parent_id"] is None and connection.execute(table.select().where(same_name, is_valid)).first():
            return False
        connection.execute(table.insert().values(values))
        return True


def find_token(database: StoreDatabase, token_hash: str, now: float) -> dict[str, Any] | None:
    """Return the token with this hash if it is valid. The token of a session must be valid too.

    Tokens of an identity provider are not in the table: a session with such a parent is valid until it expires.
    """
    table, parent = get_table("tokens"), get_table("tokens").alias("parent")
    query = sa.select(table).outerjoin(parent, table.c.parent_id == parent.c.token_id).where(table.c.hash == token_hash)
    for each in (table.c, parent.c):
        query = query.where(each.revoked_at.is_(None), sa.or_(each.expires_at.is_(None), each.expires_at > now))
    is_external = table.c.parent_id.startswith(EXTERNAL_PREFIX)
    query = query.where(sa.or_(table.c.parent_id.is_(None), parent.c.token_id.is_not(None), is_external))
    return database.find_first(query)


def list_tokens(database: StoreDatabase, *, with_external_sessions: bool = False) -> list[dict[str, Any]]:
    """Return all tokens, the newest first; on request with the sessions of an identity provider's users."""
    table = get_table("tokens")
    parent = table.c.parent_id
    is_listed = parent.is_(None) | parent.startswith(EXTERNAL_PREFIX) if with_external_sessions else parent.is_(None)
    query = table.select().where(is_listed).order_by(table.c.created_at.desc())
    return [row._asdict() for row in database.find(query)]


def has_token(database: StoreDatabase) -> bool:
    table = get_table("tokens")
    return database.find_first(table.select().where(table.c.parent_id.is_(None))) is not None


def revoke_token(database: StoreDatabase, name_or_id: str, now: float) -> int:
    """Revoke the valid token with this name or id; returns how many there were."""
    table = get_table("tokens")
    is_named = (table.c.name == name_or_id) & table.c.parent_id.is_(None)
    query = table.update().where(is_named | (table.c.token_id == name_or_id), table.c.revoked_at.is_(None))
    return database.change(query.values(revoked_at=now))


def replace_secret(database: StoreDatabase, token_id: str, values: Mapping[str, Any]) -> bool:
    """Give a token the hash of `values`, and let the earlier hash and all sessions end with them. False if it is gone.

    `values` are a session of the token, which gets the earlier hash.
    """
    table = get_table("tokens")
    is_token = (table.c.token_id == token_id) & table.c.revoked_at.is_(None)
    until = values["expires_at"]
    with database.write() as connection:
        row = connection.execute(table.select().where(is_token).with_for_update()).mappings().first()
        if row is None:
            return False
        connection.execute(table.update().where(is_token).values(hash=values["hash"]))
        ends_later = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > until)
        connection.execute(table.update().where(table.c.parent_id == token_id, ends_later).values(expires_at=until))
        connection.execute(table.insert().values({**values, "hash": row["hash"]}))
        return True
