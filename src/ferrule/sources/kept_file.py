"""Files that are written whole or not at all, in a folder that only the user can read."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def keep(path: Path, content: bytes) -> None:
    """Write a file; OSError where that cannot be done, and then the old one is still there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
