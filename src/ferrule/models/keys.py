"""API keys that the user has stored: in a file of the user's configuration folder, or in the system's keyring.

A key is never written into a project. Variables of the environment come first: a stored key is used where its variable,
such as `OPENAI_API_KEY`, is not set.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from ferrule.errors import MissingExtra, SetupError, error_text
from ferrule.store.location import atomic_write, settings_directory

logger = logging.getLogger("ferrule.models")

KeyPlace: TypeAlias = Literal["file", "keyring"]
_KEYRING_SERVICE: Final = "ferrule"
_IN_KEYRING: Final = {"keyring": True}
"""The entry of the file for a key that is in the keyring: so the keyring is opened only for keys that are there."""


def key_variable(provider: str) -> str:
    """Return the variable that has the key of a provider."""
    return f"{provider.upper().replace('-', '_')}_API_KEY"


class StoredKeys:
    """The stored keys, by the names of their variables."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.path = settings_directory(environ) / "keys.json"

    def places(self) -> dict[str, KeyPlace]:
        """Return where each key is, by its variable."""
        return {name: "keyring" if entry == _IN_KEYRING else "file" for name, entry in self._read().items()}

    def get_all(self) -> dict[str, str]:
        """Return every key that can be read, by its variable."""
        entries = self._read()
        keys = {name: _read_keyring(name) if entry == _IN_KEYRING else str(entry) for name, entry in entries.items()}
        return {name: key for name, key in keys.items() if key}

    def store(self, variable: str, key: str, *, in_keyring: bool = False) -> None:
        """Store a key, in place of an earlier one."""
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise SetupError("That is not a key: a key is one line without spaces. Nothing was stored.")
        entries = self._read()
        if in_keyring:
            _write_keyring(variable, key)
        elif entries.get(variable) == _IN_KEYRING:
            _write_keyring(variable, None)
        self._write({**entries, variable: _IN_KEYRING if in_keyring else key})

    def remove(self, variable: str) -> bool:
        """Remove a key; False when there was none."""
        entries = self._read()
        if variable not in entries:
            return False
        if entries.pop(variable) == _IN_KEYRING:
            _write_keyring(variable, None)
        self._write(entries)
        return True

    def _read(self) -> dict[str, Any]:
        try:
            entries = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            entries = None
        if not isinstance(entries, dict):
            raise SetupError(f"{self.path} cannot be read. Delete it and store your keys again: ferrule models key")
        return entries

    def _write(self, entries: Mapping[str, Any]) -> None:
        try:
            atomic_write(self.path, json.dumps(entries, indent=2).encode())
        except OSError as error:
            raise SetupError(f"The key was not stored: cannot write {self.path} ({error.strerror}).") from error


class EnvironmentWithKeys(dict[str, str]):
    """The variables of the process, with the stored keys of variables that are not set."""

    stored_variables: frozenset[str] = frozenset()
    """The variables whose values are stored keys."""


def model_environment(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the environment of the process with the stored keys; an environment of one's own is returned unchanged."""
    if environ is not None and environ is not os.environ:
        return environ
    keys = {name: key for name, key in StoredKeys().get_all().items() if not os.environ.get(name)}
    if "ANTHROPIC_AUTH_TOKEN" in os.environ:
        keys.pop("ANTHROPIC_API_KEY", None)
    base_url = os.environ.get("OPENAI_BASE_URL")
    if base_url and urlsplit(base_url).hostname != "api.openai.com":
        keys.pop("OPENAI_API_KEY", None)  # a key of OpenAI is not sent to another server
    environment = EnvironmentWithKeys({**os.environ, **keys})
    environment.stored_variables = frozenset(keys)
    return environment


# The system's keyring


def _load_keyring() -> Any:
    try:
        return importlib.import_module("keyring")
    except ImportError:
        raise MissingExtra("keyring", "keyring") from None


def _read_keyring(variable: str) -> str | None:
    """Return the key; None if the keyring cannot be read, so that models that need no key still work."""
    try:
        return _load_keyring().get_password(_KEYRING_SERVICE, variable)  # type: ignore[no-any-return]
    except Exception as error:
        logger.warning("The key %s is in the system's keyring, which cannot be read: %s", variable, error_text(error))
        return None


def _write_keyring(variable: str, key: str | None) -> None:
    keyring = _load_keyring()
    try:
        if key is not None:
            keyring.set_password(_KEYRING_SERVICE, variable, key)
        elif keyring.get_password(_KEYRING_SERVICE, variable) is not None:
            keyring.delete_password(_KEYRING_SERVICE, variable)
    except Exception as error:
        raise SetupError(
            f"The system's keyring cannot be used: {error_text(error)} Store the key in a file: leave out --keyring."
        ) from error
