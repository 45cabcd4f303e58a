"""A backend of the package `keyring` that keeps its passwords in a file, chosen by `PYTHON_KEYRING_BACKEND`."""

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError


class FileKeyring(KeyringBackend):  # type: ignore[misc, unused-ignore]
    priority = 1.0

    @property
    def _path(self) -> Path:
        return Path(os.environ["FILE_KEYRING"])

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def get_password(self, service: str, username: str) -> str | None:
        return self._read().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._path.write_text(json.dumps({**self._read(), f"{service}/{username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        passwords = self._read()
        if passwords.pop(f"{service}/{username}", None) is None:
            raise PasswordDeleteError("There is no such password.")
        self._path.write_text(json.dumps(passwords))
