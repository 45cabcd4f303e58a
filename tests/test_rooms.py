"""The rooms are an ordered list: each imports only rooms named before it, wherever in the file the import stands."""

import ast
from pathlib import Path

import ferrule

ROOMS = [
    "errors",
    "names",
    "content",
    "spec",
    "call",
    "messages",
    "events",
    "schema",
    "registry",
    "search",
    "tags",
    "validation",
    "redaction",
    "store",
    "concurrency",
    "executors",
    "sources",
    "engine",
    "memory",
    "hub",
    "describe",
    "subagent",
    "models",
    "parsing",
    "tools",
    "config",
    "library",
    "agent",
    "workflow",
    "orchestrator",
    "testing",
    "adapters",
    "server",
    "cli",
]
PACKAGE = Path(ferrule.__file__).parent


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: write the import in full"
            names = [f"{node.module}.{a.name}" if node.module == "ferrule" else str(node.module) for a in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("ferrule.")}
    return found & set(ROOMS)


def test_every_module_belongs_to_a_room():
    assert {room_of(p) for p in PACKAGE.rglob("*.py")} - {"__init__", "__main__"} <= set(ROOMS)


def test_a_room_imports_only_rooms_named_before_it():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in PACKAGE.rglob("*.py")
        if room_of(path) not in ("__init__", "__main__")
        for other in imported_rooms(path)
        if ROOMS.index(other) > ROOMS.index(room_of(path))
    ]
    assert wrong == []
