"""A database assistant: a model may read freely, and every change waits for a person who sees the statement.

The bundled tool `database_query` opens SQLite read-only for `query`; `execute` is destructive, so an agent's call of it
needs an approval. A rule forbids what nobody should do by chat. The script stands for a real model.
"""

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from ferrule import Agent, Approval, Policy, Rule, UnifiedToolLibrary
from ferrule.agent import ApprovalRequest
from ferrule.testing import ScriptedModel
from ferrule_tools.database import DatabaseConfig, DatabaseQueryConfig, database_query_tools

POLICY = Policy(
    rules=[
        Rule(verdict="deny", tool="database_query__execute", arguments={"sql": ["DROP*", "drop*"]}, reason="No DROP."),
        Rule(verdict="ask", effect="destructive", principal="agent"),
    ]
)
SCRIPT = [
    {"name": "database_query__query", "arguments": {"sql": "SELECT name, stock FROM products WHERE stock < 5"}},
    {"name": "database_query__execute", "arguments": {"sql": "DROP TABLE products"}},
    {"name": "database_query__execute", "arguments": {"sql": "UPDATE products SET stock = 20 WHERE name = 'Tea'"}},
    "Tea was low, and is at 20 now.",
]


class Clerk:
    """Somebody at the terminal; here the decision is made by the first word."""

    def approve(self, request: ApprovalRequest) -> Approval | bool:
        statement = request.arguments["sql"]
        print(f"approve: {statement}")
        return statement.startswith("UPDATE") or Approval(allowed=False, reason="Only updates.")


def make_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE products (name TEXT, stock INTEGER)")
        connection.executemany("INSERT INTO products VALUES (?, ?)", [("Tea", 2), ("Coffee", 40)])
    connection.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.db")
        make_database(path)
        databases = {"shop": DatabaseConfig(url=f"sqlite:///{path}", read_only=False)}
        async with UnifiedToolLibrary(policy=POLICY) as library:
            library.register(*database_query_tools(DatabaseQueryConfig(databases=databases)))
            agent = Agent(library, ScriptedModel(SCRIPT), tools=["database_query"], person=Clerk())
            answer = await agent.run("Which products are low? Order more of them.")
            for step in answer.steps:
                print(f"{step.tool_id}: {step.text.splitlines()[0]}")
            print(answer.text)
        with sqlite3.connect(path) as connection:
            print("stock:", connection.execute("SELECT stock FROM products WHERE name = 'Tea'").fetchone()[0])
        connection.close()


if __name__ == "__main__":
    asyncio.run(main())
