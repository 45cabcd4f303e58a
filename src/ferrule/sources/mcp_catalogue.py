"""What servers listed last time, on disk: tools can be shown without starting anything.

One file for each server and each way to reach it. A file that cannot be read counts as not there; one that cannot be
written is a pity and no more.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ferrule.content import encode_json
from ferrule.executors.mcp.listing import Listing
from ferrule.sources.kept_file import keep
from ferrule.spec import Effects, ToolCapability

logger = logging.getLogger("ferrule.sources")

FORMAT = 1


class McpCatalogue:
    """The listings of servers in a folder."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory if directory is not None else _default_directory()

    def read(self, name: str, digest: str) -> Listing | None:
        try:
            said = json.loads(self._path(name, digest).read_bytes())
            return _listing(said) if said["format"] == FORMAT else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, name: str, digest: str, listing: Listing) -> None:
        path = self._path(name, digest)
        capabilities = [{f.name: getattr(c, f.name) for f in fields(c)} for c in listing.capabilities]
        content = encode_json({"format": FORMAT, **asdict(listing), "capabilities": capabilities})
        try:
            if path.exists() and path.read_bytes() == content:
                return
            keep(path, content)
        except OSError as error:
            logger.warning("path=<%s> | what a server lists could not be kept: %s", path, error)

    def _path(self, name: str, digest: str) -> Path:
        return self.directory / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:40]}-{digest}.json"


def _listing(said: dict[str, Any]) -> Listing:
    known = {field.name: said[field.name] for field in fields(Listing) if field.name in said}
    return Listing(**{**known, "capabilities": tuple(_capability(each) for each in said["capabilities"])})


def _capability(said: dict[str, Any]) -> ToolCapability:
    effects = said.get("effects")
    return ToolCapability(**{**said, "effects": None if effects is None else Effects(**effects), "limits": None})


def _default_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule" / "mcp"
