"""Secrets for servers elsewhere, which Ferrule sends in the name of a user: stored encrypted, by account and name.

They are encrypted with Fernet. The key is not in the store: it is in the variable `FERRULE_ENCRYPTION_KEY`, or in a
file that only its owner can read. Account and name are encrypted with the secret, so that a person who can write to the
database cannot give one user's secret to another.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import MissingExtra, SetupError
from ferrule.store.database import StoreDatabase
from ferrule.store.location import make_directory, settings_directory
from ferrule.store.tables import get_table, sa, upsert_statement

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


KEY_VARIABLE: Final = "FERRULE_ENCRYPTION_KEY"
KEY_FILE_VARIABLE: Final = "FERRULE_ENCRYPTION_KEY_FILE"
KEY_SIZE: Final = 32
MAX_SECRET_LENGTH: Final = 65_536
LOCAL_ACCOUNT: Final = ""
"""The account of the user who runs this process, which also lists the actions of servers."""
_NAME: Final = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_KEY_ADVICE: Final = "Make one with: openssl rand -base64 32"


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialEntry:
    """That there is a credential, without its secret."""

    account: str
    name: str
    updated_at: float


class Credentials:
    def __init__(self, query: Callable[..., Awaitable[Any]], environ: Mapping[str, str] = os.environ) -> None:
        """Take a `query` that runs a function of the database in a thread."""
        self._query, self._environ = query, environ
        self._cipher: MultiFernet | None = None

    async def get(self, account: str, name: str) -> str | None:
        """Return the secret, or None. Raises SetupError if it cannot be decrypted."""
        row = await self._query(
            lambda database: database.find_first(
                sa.select(get_table("credentials")).where(_is_credential(account, name))
            )
        )
        if row is None:
            return None
        cipher = self._read_keys()
        from cryptography.fernet import InvalidToken

        with suppress(InvalidToken):
            *binding, secret = json.loads(cipher.decrypt(row["ciphertext"]))
            if binding == [account, name]:
                return str(secret)
        raise SetupError(
            f"The credential {name!r} was encrypted with another key, or changed in the database. Set {KEY_VARIABLE} "
            "to the key it was stored with (several keys are separated by commas), or store it again."
        )

    async def set(self, account: str, name: str, secret: str) -> None:
        if not 0 < len(secret) <= MAX_SECRET_LENGTH:
            raise SetupError(f"A credential has 1 to {MAX_SECRET_LENGTH:,} characters. Nothing was stored.")
        ciphertext = self._read_keys(may_create=True).encrypt(json.dumps([account, name, secret]).encode())
        values = {"account": account, "name": name, "ciphertext": ciphertext.decode(), "updated_at": time.time()}
        await self._query(lambda database: database.change(upsert_statement("credentials"), values))

    async def delete(self, account: str, name: str) -> bool:
        """Delete a credential; False when there was none."""
        deleted = await self._query(
            lambda database: database.change(sa.delete(get_table("credentials")).where(_is_credential(account, name)))
        )
        return bool(deleted)

    async def list_entries(self, account: str | None = None) -> list[CredentialEntry]:
        def find(database: StoreDatabase) -> list[Any]:
            table = get_table("credentials")
            query = sa.select(table.c.account, table.c.name, table.c.updated_at)
            is_found = sa.true() if account is None else table.c.account == account
            return database.find(query.where(is_found).order_by(table.c.account, table.c.name))

        return [CredentialEntry(**row._asdict()) for row in await self._query(find)]

    def _read_keys(self, *, may_create: bool = False) -> MultiFernet:
        if self._cipher is None:
            self._cipher = read_encryption_keys(self._environ, may_create=may_create)
        return self._cipher


def check_credential_name(name: str) -> None:
    if not _NAME.match(name):
        raise SetupError(f"The name of a credential has letters, digits, '-', '_' and '.', not {name[:100]!r}.")


def _is_credential(account: str, name: str) -> sa.ColumnElement[bool]:
    table = get_table("credentials")
    return (table.c.account == account) & (table.c.name == name)


# Encryption


def read_encryption_keys(environ: Mapping[str, str], *, may_create: bool = False) -> MultiFernet:
    """Return the keys of this process: the first encrypts, the others are earlier keys.

    Without a variable, the key is in a file of the user's settings, which is created when the first secret is stored.
    """
    if find_spec("cryptography") is None:
        raise MissingExtra("cryptography", "server")
    if text := environ.get(KEY_VARIABLE):
        return _parse_keys(text, KEY_VARIABLE)
    named = environ.get(KEY_FILE_VARIABLE)
    path = Path(named) if named else settings_directory(environ) / "encryption.key"
    if may_create and not named and not path.exists():
        _create_key_file(path)
    return _parse_keys(_read_private_file(path), str(path))


def _parse_keys(text: str, origin: str) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet

    parts = [part.replace("+", "-").replace("/", "_") for part in re.split(r"[,\s]+", text) if part]
    if not parts:
        raise SetupError(f"{origin} has no key. {_KEY_ADVICE}")
    try:
        return MultiFernet([Fernet(f"{part}==") for part in parts])
    except ValueError:
        raise SetupError(f"{origin} must be {KEY_SIZE} bytes in base64. {_KEY_ADVICE}") from None


def _read_private_file(path: Path) -> str:
    """Return the content of a file that no other user can read or has written."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SetupError(f"{path} is not a file.")
            if status.st_uid not in (os.getuid(), 0):
                raise SetupError(f"The key file {path} belongs to another user. Use one of your own.")
            if status.st_mode & 0o077:
                raise SetupError(f"Others can read the key file {path}. Run: chmod 600 {path}")
            return file.read(65_536).decode()
    except FileNotFoundError:
        raise SetupError(
            f"There is no key to decrypt credentials: set {KEY_VARIABLE}, or create {path}. {_KEY_ADVICE}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The key file {path} cannot be read: {error}") from None


def _create_key_file(path: Path) -> None:
    make_directory(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # which only the user can read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(KEY_SIZE)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:  # another process was faster
        pass
    except OSError as error:
        raise SetupError(f"The key file {path} cannot be created: {error}") from None
    finally:
        os.unlink(temporary)
