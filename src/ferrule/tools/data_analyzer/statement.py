"""What a query may be: one SELECT, over tables that it was given and functions that only compute.

DuckDB parses it, and what it understood is looked at here, name by name: no text is searched, so nothing can be hidden
in quotes or comments. A file that stands in the place of a table (`FROM 'sales.csv'`) is opened in the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from ferrule.errors import Refuse, Retry
from ferrule.names import did_you_mean
from ferrule.tools.data_analyzer.data_file import KINDS
from ferrule.tools.data_analyzer.failures import told_failures

TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "json_each", "json_tree", "generate_subscripts", "regexp_split_to_table"}
)
"""All that may stand in FROM beside tables: what reads files, settings, memory or other SQL may not."""
_NOT_FOR_DATA: Final = frozenset(
    {
        "write_log",
        "getvariable",
        "current_setting",
        "finalize",
        "combine",
        "to_aggregate_state",
        "variant_bytes_to_variant",
        "json_serialize_sql",
        "json_serialize_plan",
        "json_deserialize_sql",
    }
)
"""Functions that reach into the program, take bytes for what they are said to be, or read a text as SQL: to plan it
opens what it names, and runs what is constant in it."""
_LONGEST: Final = 50_000
ONE_SELECT: Final = "Give one SELECT statement, which may begin with WITH or FROM."


def files_in(connection: Any, sql: str) -> list[str]:
    """The files that a query names in the place of tables, if it is one that may be run; it is only parsed."""
    if len(sql) > _LONGEST:
        raise Retry(f"the SQL has {len(sql):,} characters: more than {_LONGEST:,} are not read.")
    if "\0" in sql:
        raise Retry("the SQL has a character in it that ends texts.")
    with told_failures():
        (said,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    try:
        tree = json.loads(said)
    except RecursionError:
        raise Retry("the SQL is nested too deep.") from None
    if tree["error"]:
        raise _refusal(tree)
    if len(tree["statements"]) != 1:
        raise Retry(f"there are {len(tree['statements'])} statements in the SQL. {ONE_SELECT}")
    nodes = list(_nodes(tree))
    _require_harmless(nodes)
    return _files(nodes)


def _refusal(tree: dict[str, Any]) -> Exception:
    message = str(tree.get("error_message", ""))
    if tree.get("error_type") == "not implemented":
        return Refuse(
            f"only SELECT is allowed: the files are read, and nothing is changed. {ONE_SELECT} A PIVOT must name its "
            "values: PIVOT … ON column IN ('a', 'b')."
        )
    return Retry(f"the SQL cannot be read: {message[:500]}")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a tree, without recursion: queries can be deep."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _require_harmless(nodes: list[dict[str, Any]]) -> None:
    for node in nodes:
        if node.get("type") == "TABLE_FUNCTION":
            name = _function_name(node.get("function"))
            if name not in TABLE_FUNCTIONS:
                raise Refuse(
                    f"{name!r} cannot stand in FROM.{did_you_mean(name, TABLE_FUNCTIONS)} Name files like tables: FROM "
                    "'sales.csv', or give them in `tables`."
                )
        elif "function_name" in node and _function_name(node) in _NOT_FOR_DATA:
            raise Refuse(f"the function {_function_name(node)!r} is not allowed: it is not one for data.")


def _function_name(node: Any) -> str:
    return str(node.get("function_name", "")).lower() if isinstance(node, dict) else ""


def _files(nodes: list[dict[str, Any]]) -> list[str]:
    named_in_query = {
        str(entry.get("key")).casefold()
        for node in nodes
        if isinstance(entries := node.get("map"), list)
        for entry in entries
        if isinstance(entry, dict)
    }
    found: dict[str, str] = {}
    for node in nodes:
        name = str(node.get("table_name", ""))
        is_table = node.get("type") == "BASE_TABLE" and not node.get("schema_name")
        if is_table and name.casefold() not in named_in_query and PurePosixPath(name).suffix.lower() in KINDS:
            first = found.setdefault(name.casefold(), name)
            if first != name:
                raise Retry(f"{first!r} and {name!r} are one name to DuckDB: give the files other names in `tables`.")
    return list(found.values())
