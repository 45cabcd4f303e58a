"""A pytest plugin: the CPU seconds of each test, of its process and of every process below it.

With `--cpu-seconds FILE` they are written, by file of tests; `scripts/test_budget.py` compares them with the budgets.
"""

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cpu_seconds"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_START] = used_cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_PROPERTY, used_cpu_seconds() - item.stash[_START]))
    return report


_START = pytest.StashKey[float]()


def used_cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_read_cpu_seconds, _descendants()))


def _descendants(pid: str = "self") -> Iterator[str]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield child
                yield from _descendants(child)
    except OSError:  # it has ended, or there is no such folder on this system
        return


def _read_cpu_seconds(pid: str) -> float:
    """Those of a process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


class CpuSeconds:
    """The sums of the run, in the process that distributes the tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_file: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_file[report.location[0]] += float(str(dict(report.user_properties).get(_PROPERTY, 0.0)))

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.by_file, indent=1), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write the CPU seconds of each file of tests")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-seconds")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CpuSeconds(config.rootpath / path))
