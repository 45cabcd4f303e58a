"""Patterns that are compiled at their first use."""

import gc
import importlib
import pkgutil
import re

import ferrule
import ferrule_tools
from ferrule.core.patterns import LazyPattern, lazy_pattern


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
    try:
        broken.search("")
    except re.error:
        return
    raise AssertionError("a broken pattern was accepted")


def test_all_patterns_of_the_packages_can_be_compiled():
    for package in (ferrule, ferrule_tools):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    patterns = [value for value in gc.get_objects() if isinstance(value, LazyPattern) and value.pattern != "("]
    assert len(patterns) > 300
    for pattern in patterns:
        re.compile(pattern.pattern, pattern._flags)
