"""Patterns that are compiled at their first use."""

import re

import pytest

from ferrule.core.patterns import lazy_pattern
from tests.support.processes import ROOT, run_python


def test_a_pattern_works_like_a_compiled_one():
    word = lazy_pattern(r"(?P<first>[a-z])[a-z]*", re.IGNORECASE)
    assert word.pattern == r"(?P<first>[a-z])[a-z]*"
    assert [match["first"] for match in word.finditer("One two")] == ["O", "t"]
    assert word.sub("x", "One two") == "x x"
    assert word.flags == re.compile(word.pattern, re.IGNORECASE).flags
    assert lazy_pattern(rb"\d").search(b"a1")


def test_a_pattern_is_compiled_at_its_first_use():
    broken = lazy_pattern("(")
    assert "search" not in vars(broken)
    with pytest.raises(re.error):
        broken.search("")


COMPILE_ALL = """
import gc, importlib, pkgutil, re
gc.unfreeze()  # what the process that made this one has loaded
import ferrule, ferrule_tools
from ferrule.core.patterns import LazyPattern

for package in (ferrule, ferrule_tools):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
patterns = [value for value in gc.get_objects() if isinstance(value, LazyPattern)]
for pattern in patterns:
    re.compile(pattern.pattern, pattern._flags)
print(len(patterns))
"""


@pytest.mark.integration
def test_all_patterns_of_the_packages_can_be_compiled():
    """In a process of its own: all modules together are large."""
    done = run_python("-c", COMPILE_ALL, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
