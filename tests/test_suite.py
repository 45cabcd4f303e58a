"""The tests themselves: none depends on an amount of time, and none can hold up the others for ever."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ferrule.store.location import settings_directory, user_cache_directory, user_state_directory

TESTS = Path(__file__).parent
HANGING_TEST = """
import pytest, threading

@pytest.mark.timeout(1)
def test_waits_even_after_its_timeout():
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()

def test_other():
    pass
"""
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path.parent.name != "support" and path != Path(__file__)]
SLEEP = re.compile(r"(?<!def )\bsleep\((?P<seconds>[\w.]*)")
CLOCK = re.compile(
    r"\b(perf_counter|process_time|thread_time|monotonic)(_ns)?\(\)"  # clocks that only measure
    r"|loop(\(\))?\.time\(\)|\.(time|now|utcnow)\([^)]*\) - [a-z_]"  # the loop's, and how long ago something was
    r"|\b(duration|elapsed)\w*(\(\))? *[<>]"
)
ENDLESS = 30
"""A sleep of so many seconds stands for work that never ends by itself."""
DEADLINE = re.compile(
    r"\b(?:(?:until|until_sync|wait_for)\(.*, (?=[\w.=]+\)$)|(?:wait|join|communicate|fail_after|asyncio\.timeout)\()"
    r"(?:timeout=|seconds=)?(?P<seconds>\d+(?:\.\d+)?)\)+:?$"
)
MIN_DEADLINE = 30
SHORT_TIMEOUT = re.compile(r"\b(?:execute|query|connect|write|do)\w*\(.*\btimeout=(?P<seconds>\d+(?:\.\d+)?)\b")
EXPECTED_TIMEOUT = re.compile(
    r"\btimeout[\"\']|TimedOut|TimeoutError|longer than|did not (?:finish|start)|time_out_after_start"
)
RANDOM = re.compile(r"(?<![\w.])random\.(?!Random\(\d*\w+\)|seed)\w+\(")
ATTEMPTS = re.compile(
    r"^( *)for \w+ in range\(\d[\d_]*\):\n(?:\1 .*\n)*?\1 +break\n(?:\1 .*\n)*?\1 +.*\bsleep\(", re.MULTILINE
)
MAX_PARAMETER = 250_000
COUNT = re.compile(r"\bassert\b.* (?:>=?|<=?) [\d_]+\b")
TEST = re.compile(r"^(?=(?:async )?def )", re.MULTILINE)


def seconds_of(match: re.Match[str]) -> float:
    """Return how long a sleep or a deadline is; 0.0 if it has another form."""
    return float(match["seconds"]) if re.fullmatch(r"\d+(\.\d+)?", match["seconds"]) else 0.0


def is_too_short(match: re.Match[str]) -> bool:
    return 0 < seconds_of(match) < MIN_DEADLINE


def may_be_too_short(match: re.Match[str]) -> bool:
    """Return whether a sleep does more than let the event loop go on, and ends by itself."""
    return match["seconds"] != "0" and not (match["seconds"].isdecimal() and int(match["seconds"]) >= ENDLESS)


def is_in_real_time(text: str) -> bool:
    """In virtual time, a sleep takes no time and always ends in the same order."""
    return "virtual_time import" not in text


def functions() -> Iterator[tuple[Path, list[str]]]:
    """The lines of each function at the top of a file whose tests run in real time."""
    for path in FILES:
        if is_in_real_time(text := path.read_text(encoding="utf-8")):
            yield from ((path, function.splitlines()) for function in TEST.split(text))


def find(
    pattern: re.Pattern[str],
    is_wrong: Callable[[re.Match[str]], bool] = bool,
    places: Iterable[tuple[Path, list[str]]] | None = None,
) -> list[str]:
    """Return the lines that match, unless a comment on the line, or on the one above, says why they are right."""
    return [
        f"{path.relative_to(TESTS)} {lines[0]} {line.strip()}"
        for path, lines in places or functions()
        for before, line in pairwise(["", *lines])
        if (match := pattern.search(line)) and is_wrong(match)
        if "  # " not in line and not before.lstrip().startswith("# ")
    ]


def test_a_sleep_has_a_reason_beside_it():
    found = find(SLEEP, may_be_too_short)
    assert found == [], "wait for a condition (tests/support/waiting.py), or say in a comment why this waits"


def test_what_must_happen_has_at_least_half_a_minute():
    """A deadline only ends a test that would hang: it is longer than anything takes, even on a busy machine."""
    assert find(DEADLINE, is_too_short) == [], "wait longer, or say in a comment why this deadline is to pass"


def test_a_timeout_that_must_not_pass_is_long():
    """A call that is to succeed has a minute or more. Short timeouts are for work that never ends."""
    quick = [(path, lines) for path, lines in functions() if not EXPECTED_TIMEOUT.search("\n".join(lines))]
    found = find(SHORT_TIMEOUT, is_too_short, quick)
    assert found == [], "give the call a minute, or assert that it times out, or say in a comment why it may not"


def test_no_count_is_compared_after_a_sleep():
    """How much happens in a fixed time depends on the machine."""
    waiting = [each for each in functions() if any(may_be_too_short(m) for m in map(SLEEP.search, each[1]) if m)]
    found = find(COUNT, places=waiting)
    assert found == [], "wait until the count is reached (tests/support/waiting.py), or say in a comment why not"


def test_no_test_reads_a_clock():
    """A test that measures how long something takes fails on a busy machine. `make bench` measures."""
    found = find(CLOCK, places=[(path, path.read_text(encoding="utf-8").splitlines() or [""]) for path in FILES])
    assert found == [], "assert an order of things or use tests/support/virtual_time.py; or say in a comment why not"


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (ATTEMPTS, "wait for the condition (tests/support/waiting.py): so many sleeps are a deadline, too"),
        (RANDOM, "use random.Random(SEED) or hypothesis: a test that fails has to fail again"),
    ],
    ids=["attempts", "random"],
)
def test_nothing_depends_on_a_number_of_attempts_or_on_chance(pattern, advice):
    texts = [(path, path.read_text(encoding="utf-8")) for path in FILES]
    found = [str(path.relative_to(TESTS)) for path, text in texts if pattern.search(text) and is_in_real_time(text)]
    assert found == [], advice


def test_no_parameter_of_a_test_has_megabytes(request):
    """Each process of tests keeps the parameters of all tests until the end."""
    values = [
        (item.nodeid, value)
        for item in request.session.items
        for value in getattr(getattr(item, "callspec", None), "params", {}).values()
    ]
    found = [name for name, value in values if isinstance(value, (str, bytes)) and len(value) > MAX_PARAMETER]
    assert found == [], "make the value in the test, from a short part and a number"


def test_a_process_of_tests_has_folders_of_its_own(tmp_path_factory):
    """What a test leaves in the user's folders would be read by tests in other processes, and by later runs."""
    own = tmp_path_factory.getbasetemp()
    folders = (settings_directory(), user_state_directory(), user_cache_directory("mcp"))
    assert [folder for folder in folders if not folder.is_relative_to(own)] == []


@pytest.mark.integration
def test_a_test_that_its_timeout_does_not_end_is_named_and_does_not_hold_up_the_others(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGING_TEST)
    (tmp_path / "conftest.py").write_text("from tests.support import watchdog\nwatchdog.EXTRA_SECONDS = 5.0\n")
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-n", "1"]
    command += ["-o", "timeout=5", "-p", "tests.support.watchdog", "-p", "no:schemathesis"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "test_waits_even_after_its_timeout did not end within" in run.stderr
    assert 'test_hanging.py", line 9 in test_waits_even_after_its_timeout' in run.stderr
    assert "1 failed, 1 passed" in run.stdout
