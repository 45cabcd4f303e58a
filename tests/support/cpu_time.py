"""A pytest plugin: the CPU seconds of each test, of its process and of every process below it.

With `--cpu-seconds FILE` they are written, by file of tests; `scripts/test_budget.py` compares them with the budgets.
The summary of the run then also names the memory of each process.
"""

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cpu_seconds"
_MEMORY = "megabytes"


class Measurement:
    """Measures each test, in the process that runs it."""

    def __init__(self) -> None:
        self._start = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._start = used_cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_PROPERTY, used_cpu_seconds() - self._start))
        return report


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
        self.megabytes: list[int] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_file[report.location[0]] += float(str(dict(report.user_properties).get(_PROPERTY, 0.0)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Read what a process of pytest-xdist has said at its end; a process that was killed has said nothing."""
        self.megabytes.append(getattr(node, "workeroutput", {}).get(_MEMORY, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"Memory of each process at its end, in MB: {self.megabytes}")

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.by_file, indent=1), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write the CPU seconds of each file of tests")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(Measurement())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(CpuSeconds(config.rootpath / path))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_MEMORY] = used_megabytes()


def used_megabytes() -> int:
    """Return the memory of this process, and 0 where the system does not say it in `/proc`."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // 1_000_000
