"""`database_query` as a project sets it up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ferrule.sources.function import tool_of
from ferrule.spec import Tool
from ferrule.tools.database_query.address import Address
from ferrule.tools.database_query.config import DatabaseQueryConfig
from ferrule.tools.database_query.querying import DatabaseReader, DatabaseWriter
from ferrule.tools.sent_object import SentObject

NO_DATABASE: Final = (
    'a database: write [tools.database_query.databases.main] and below it url = "sqlite:///shop.db" in ferrule.toml'
)
_AFTERWARDS: Final = 5.0
"""Seconds, after those of the slowest database, in which a call says that it took too long."""


def database_query_tools(
    config: DatabaseQueryConfig | None = None, *, root: str | Path = ".", environ: Mapping[str, str] = os.environ
) -> list[Tool]:
    """`database_query` for the databases that are named; paths of SQLite files start at `root`."""
    databases = (config or DatabaseQueryConfig()).databases
    start = Path(root).absolute()
    addresses = {name: Address.of(name, said, start, environ) for name, said in databases.items()}
    is_writable = any(not said.read_only for said in databases.values())
    thing = DatabaseWriter(addresses) if is_writable else DatabaseReader(addresses)
    longest = max((said.timeout for said in databases.values()), default=30.0)
    made = tool_of(thing, timeout=longest + _AFTERWARDS)
    described = replace(made.spec, description=_described(made.spec.description, addresses))
    return [replace(made, spec=described, target=SentObject(thing), needs=_needs(addresses))]


def _needs(addresses: Mapping[str, Address]) -> str:
    """Nothing, if one of the databases can be used."""
    problems = {name: address.problem() for name, address in addresses.items()}
    if not problems:
        return NO_DATABASE
    if not all(problems.values()):
        return ""
    return "; ".join(f"for the database {name!r}: {problem}" for name, problem in problems.items())


def _described(words: str, addresses: Mapping[str, Address]) -> str:
    """With the databases there are, as models must know their names."""
    listed = [
        f"{name} ({address.kind}{'' if address.config.read_only else ', can be changed'})"
        + (f": {address.config.description}" if address.config.description else "")
        for name, address in addresses.items()
        if not address.problem()
    ]
    return f"{words}\n\nDatabases: {'; '.join(listed)}." if listed else words
