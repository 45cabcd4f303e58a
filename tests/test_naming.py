"""Names say what a thing is: no participle or pronoun stands alone as a name, and no two classes share one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ferrule

SOURCE = Path(ferrule.__file__).parents[1]
FILES = [path for package in ("ferrule", "ferrule_tools") for path in sorted((SOURCE / package).rglob("*.py"))]
BANNED = frozenset(
    """
    said told found asked given kept shown meant known heard lent wanted written there those one held made taken put
    seen gone spoken
    """.split()
)
FOREIGN_ATTRIBUTES = frozenset({"put"})  # of asyncio's queues, and the HTTP method
BANNED_PREFIXES = ("MOST_", "LONGEST_", "DEEPEST_", "LARGEST_", "FEWEST_", "SHORTEST_")


def nodes_of(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and node.attr not in FOREIGN_ATTRIBUTES:
            yield node.lineno, node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def is_banned(name: str) -> bool:
    bare = name.strip("_")
    return bare in BANNED or bare.startswith(BANNED_PREFIXES)


def test_no_participle_or_pronoun_is_a_name():
    banned = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in FILES
        for line, name in names_in(path)
        if is_banned(name)
    ]
    assert banned == []


def test_no_two_classes_share_a_name():
    modules = defaultdict(set)
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                modules[node.name.strip("_")].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1} == {}
