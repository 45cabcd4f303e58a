"""Names say what a thing is: no participle or pronoun stands alone as a name, and no two classes share one."""

from collections import defaultdict

from tests.support.source_code import SOURCE, read_modules

BANNED = frozenset(
    """
    said told found asked given kept shown meant known heard lent wanted written there those one held made taken put
    seen gone spoken
    """.split()
)
FOREIGN_ATTRIBUTES = frozenset({"put"})  # of asyncio's queues, and the HTTP method
BANNED_PREFIXES = ("MOST_", "LONGEST_", "DEEPEST_", "LARGEST_", "FEWEST_", "SHORTEST_")


def is_banned(name: str) -> bool:
    bare = name.strip("_")
    return bare in BANNED or bare.startswith(BANNED_PREFIXES)


def test_no_participle_or_pronoun_is_a_name():
    banned = [
        f"{module.path.relative_to(SOURCE)}:{line} {name}"
        for module in read_modules()
        for line, name in sorted(module.names | module.attributes)
        if is_banned(name) and not (name in FOREIGN_ATTRIBUTES and (line, name) not in module.names)
    ]
    assert banned == []


def test_no_two_classes_share_a_name():
    modules = defaultdict(set)
    for module in read_modules():
        for name in module.classes:
            modules[name.strip("_")].add(str(module.path.relative_to(SOURCE)))
    assert {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1} == {}
