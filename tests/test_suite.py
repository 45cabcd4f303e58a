"""The tests themselves: none depends on an amount of time, and none can hold up the others for ever."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.store.location import settings_directory, user_cache_directory, user_state_directory

TESTS = Path(__file__).parent
HANGING_TEST = """
import threading

def test_waits_even_after_its_timeout():
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()

def test_other():
    pass
"""
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path.parent.name != "support" and path != Path(__file__)]
SLEEP = re.compile(r"\bsleep\((?P<seconds>[\w.]*)")
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
COUNT = re.compile(r"\bassert\b.* (?:>=?|<=?) [\d_]+\b")
TEST = re.compile(r"^(?=(?:async )?def )", re.MULTILINE)


def has_reason(lines: list[str], index: int) -> bool:
    """Return whether a comment says why the line waits: on the line, or on the one above."""
    return "  # " in lines[index] or lines[index - 1].lstrip().startswith("# ")


def is_harmless(seconds: str) -> bool:
    """Return whether a sleep only lets the event loop go on, or is there to be interrupted."""
    return seconds == "0" or (seconds.isdecimal() and int(seconds) >= ENDLESS)


def test_a_sleep_has_a_reason_beside_it():
    """In virtual time, a sleep takes no time and always ends in the same order."""
    found = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        if any("virtual_time import" in line for line in lines):
            continue
        for index, line in enumerate(lines):
            match = SLEEP.search(line)
            if (
                match
                and "def sleep(" not in line
                and not is_harmless(match["seconds"])
                and not has_reason(lines, index)
            ):
                found.append(f"{path.relative_to(TESTS)}:{index + 1} {line.strip()}")
    assert found == [], "wait for a condition (tests/support/waiting.py), or say in a comment why this waits"


def files_in_real_time() -> list[tuple[Path, str]]:
    texts = [(path, path.read_text(encoding="utf-8")) for path in FILES]
    return [(path, text) for path, text in texts if "virtual_time import" not in text]


def test_a_timeout_that_must_not_pass_is_long():
    """A call that is to succeed has a minute or more. Short timeouts are for work that never ends."""
    found = []
    for path, text in files_in_real_time():
        for function in TEST.split(text):
            lines = function.splitlines()
            found += [
                f"{path.relative_to(TESTS)} {lines[0]} {line.strip()}"
                for index, line in enumerate(lines)
                if (match := SHORT_TIMEOUT.search(line))
                and 0 < float(match["seconds"]) < MIN_DEADLINE
                and not EXPECTED_TIMEOUT.search(function)
                and not has_reason(lines, index)
            ]
    assert found == [], "give the call a minute, or assert that it times out, or say in a comment why it may not"


def test_no_test_gives_up_after_a_number_of_sleeps():
    """So many attempts with a sleep between them are a deadline that is not written as one."""
    found = [str(path.relative_to(TESTS)) for path, text in files_in_real_time() if ATTEMPTS.search(text)]
    assert found == [], "wait for the condition (tests/support/waiting.py); pytest's timeout ends a test that hangs"


def test_random_values_are_the_same_in_each_run():
    """A test that fails for one value in a thousand has to fail again when it is run again."""
    found = [str(path.relative_to(TESTS)) for path in FILES if RANDOM.search(path.read_text(encoding="utf-8"))]
    assert found == [], "use random.Random(SEED), or hypothesis"


def test_a_process_of_tests_has_folders_of_its_own(tmp_path_factory):
    """What a test leaves in the user's folders would be read by tests in other processes, and by later runs."""
    own = tmp_path_factory.getbasetemp()
    folders = (settings_directory(), user_state_directory(), user_cache_directory("mcp"))
    assert [folder for folder in folders if not folder.is_relative_to(own)] == []


def test_what_must_happen_has_at_least_half_a_minute():
    """A deadline only ends a test that would hang: it is longer than anything takes, even on a busy machine."""
    found = []
    for path, text in files_in_real_time():
        lines = text.splitlines()
        for index, line in enumerate(lines):
            match = DEADLINE.search(line)
            if match and 0 < float(match["seconds"]) < MIN_DEADLINE and not has_reason(lines, index):
                found.append(f"{path.relative_to(TESTS)}:{index + 1} {line.strip()}")
    assert found == [], "wait longer, or say in a comment why this deadline is to pass"


def test_no_count_is_compared_after_a_sleep():
    """How much happens in a fixed time depends on the machine."""
    found = []
    for path, text in files_in_real_time():
        for function in TEST.split(text):
            lines = function.splitlines()
            if any(match and not is_harmless(match["seconds"]) for match in map(SLEEP.search, lines)):
                counts = [line.strip() for index, line in enumerate(lines) if COUNT.search(line)]
                found += [f"{path.relative_to(TESTS)} {lines[0]} {count}" for count in counts if "  # " not in count]
    assert found == [], "wait until the count is reached (tests/support/waiting.py), or say in a comment why not"


def test_no_test_reads_a_clock():
    """A test that measures how long something takes fails on a busy machine. `make bench` measures."""
    found = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [
            f"{path.relative_to(TESTS)}:{index + 1} {line.strip()}"
            for index, line in enumerate(lines)
            if CLOCK.search(line) and not has_reason(lines, index)
        ]
    assert found == [], "assert an order of things or use tests/support/virtual_time.py; or say in a comment why not"


@pytest.mark.integration
def test_a_test_that_its_timeout_does_not_end_is_named_and_does_not_hold_up_the_others(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGING_TEST)
    (tmp_path / "conftest.py").write_text("from tests.support import watchdog\nwatchdog.EXTRA_SECONDS = 1.0\n")
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-n", "1"]
    command += ["--timeout", "1", "-o", "timeout=1", "-p", "tests.support.watchdog", "-p", "no:schemathesis"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "test_waits_even_after_its_timeout did not end within" in run.stderr
    assert 'test_hanging.py", line 8 in test_waits_even_after_its_timeout' in run.stderr
    assert "1 failed, 1 passed" in run.stdout
