"""A pytest plugin: the CPU seconds of each test, of its process and of every process below it.

With `--cpu-seconds FILE` they are written, by file of tests, and beside them the seconds of a fixed loop in the same
processes: with these, `scripts/test_budget.py` says the same on a fast and on a slow machine. The summary of the run
then also names the memory of each process.
"""

import json
import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cpu_seconds"
_MEMORY = "megabytes"
_LOOP = "loop_seconds"


class Measurement:
    """Measures each test and the loop, in the process that runs the tests."""

    def __init__(self) -> None:
        self._start = 0.0
        self._loops: list[float] = []

    def pytest_collection_finish(self) -> None:
        self._loops.append(measure_loop())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._loops.append(measure_loop())
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput |= {_MEMORY: used_megabytes(), _LOOP: statistics.fmean(self._loops)}

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


def measure_loop() -> float:
    """Return the CPU seconds of a fixed loop, which say how fast Python is on this machine, as busy as it is."""
    start, table = time.thread_time(), dict[int, tuple[str, int]]()
    for number in range(500_000):
        table[number % 1_000] = str(number), number
    return time.thread_time() - start


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
        self.loops: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_file[report.location[0]] += float(str(dict(report.user_properties).get(_PROPERTY, 0.0)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Read what a process of pytest-xdist has said at its end; a process that was killed has said nothing."""
        output = getattr(node, "workeroutput", {})
        self.megabytes.append(output.get(_MEMORY, 0))
        self.loops += [output[_LOOP]] if _LOOP in output else []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"Memory of each process at its end, in MB: {self.megabytes}")

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results = {"loop": statistics.fmean(self.loops or [measure_loop()]), "files": self.by_file}
        self.path.write_text(json.dumps(results, indent=1), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write the CPU seconds of each file of tests")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(Measurement())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(CpuSeconds(config.rootpath / path))


def used_megabytes() -> int:
    """Return the memory of this process, and 0 where the system does not say it in `/proc`."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // 1_000_000
