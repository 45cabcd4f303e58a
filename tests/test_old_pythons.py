"""What the oldest Python we support does wrong must not be used."""

import re
from pathlib import Path

import ferrule

POSSESSIVE_GROUP = re.compile(r"\)(?:\*\+|\+\+|\?\+|\{[\d,]+\}\+)|\(\?>")


def test_no_group_is_repeated_possessively():
    """Before 3.11.5 such a group, if it has to go back inside, does not match what it should."""
    lines = [
        f"{path.name}:{number}"
        for path in Path(ferrule.__file__).parent.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if POSSESSIVE_GROUP.search(line) and "safe=" not in line
    ]
    assert lines == []
