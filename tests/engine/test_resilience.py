"""The small parts of the engine, each alone."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Output
from ferrule.core.permission import Principal
from ferrule.core.spec import Effects, Tool, ToolCapability, ToolSpec
from ferrule.engine.output_limit import cut_text
from ferrule.engine.resilience import (
    FOREIGN_ERRORS,
    BreakerConfig,
    CircuitBreaker,
    ResultCache,
    RetryPolicy,
    to_call_error,
)
from ferrule.errors import CallError, ExecutionFailed, Rejected, TimedOut, Transient, TransportFault
from ferrule.http.guard import AddressGuard
from ferrule.kinds.executors import Executors
from ferrule.kinds.mcp.executor import McpExecutor


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_faults_in_a_row_open_the_circuit_and_one_call_may_try_later():
    clock = Clock()
    breaker = CircuitBreaker(BreakerConfig(threshold=2, recovery=10), clock)
    breaker.record_fault()
    breaker.record_fault()
    with pytest.raises(Rejected, match="'t' could not be reached 2 times"):
        breaker.begin_call("t")
    clock.now = 11
    breaker.begin_call("t")
    with pytest.raises(Rejected):
        breaker.begin_call("t")
    breaker.record_success()
    breaker.begin_call("t")
    assert breaker.state == "closed"


def test_an_answer_between_faults_keeps_the_circuit_closed():
    breaker = CircuitBreaker(BreakerConfig(threshold=2))
    for _ in range(5):
        breaker.record_fault()
        breaker.record_success()
    assert breaker.state == "closed"


def test_one_process_that_cannot_reach_a_tool_does_not_keep_it_from_others_that_can():
    clock = Clock()
    breaker = CircuitBreaker(BreakerConfig(threshold=2, recovery=10), clock)
    breaker.open()
    with pytest.raises(Rejected):
        breaker.begin_call("t")
    clock.now += 10
    breaker.begin_call("t")
    breaker.record_success()
    breaker.open()  # the other process has tried again, too
    breaker.begin_call("t")
    breaker.record_fault()
    breaker.open()
    with pytest.raises(Rejected):
        breaker.begin_call("t")


def test_a_failed_trial_opens_the_circuit_again():
    clock = Clock()
    breaker = CircuitBreaker(BreakerConfig(threshold=1, recovery=10), clock)
    breaker.record_fault()
    clock.now = 11
    breaker.begin_call("t")
    breaker.record_fault()
    assert breaker.state == "open"


@pytest.mark.parametrize(
    ("failure", "effects", "attempts", "again"),
    [
        (Transient("x"), Effects(idempotent=True), 1, True),
        (Transient("x"), Effects(read_only=True), 3, True),
        (Transient("x"), Effects(idempotent=True), 4, False),
        (Transient("x"), Effects(), 1, False),
        (ExecutionFailed("x"), Effects(idempotent=True), 1, False),
        (TimedOut("x"), Effects(idempotent=True), 1, False),
    ],
)
def test_only_transient_failures_of_repeatable_tools_are_tried_again(failure, effects, attempts, again):
    assert RetryPolicy().may_retry(failure, effects, ToolExecutionContext(max_retries=3), attempts) is again


def test_delays_double_up_to_a_limit_and_a_failure_may_name_its_own():
    policy = RetryPolicy(first_delay=1, max_delay=5, jitter=lambda: 1.0)
    assert [policy.delay(Transient("x"), n) for n in (1, 2, 3, 4)] == [1, 2, 4, 5]
    assert policy.delay(Transient("x", retry_after=9), 1) == 9


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("gone"), TransportFault),
        (TimeoutError("slow"), Transient),
        (ValueError("bad"), ExecutionFailed),
        (Rejected("full"), Rejected),
    ],
)
def test_what_a_tool_raised_is_put_in_our_words(error, kind):
    assert type(to_call_error(error)) is kind


def test_the_nearest_class_of_a_foreign_family_decides():
    import httpx

    assert type(to_call_error(httpx.ConnectTimeout("x"))) is TransportFault
    assert type(to_call_error(httpx.ReadTimeout("x"))) is Transient
    assert type(to_call_error(httpx.RemoteProtocolError("x"))) is TransportFault


def test_every_foreign_exception_of_the_installed_libraries_exists():
    import importlib

    for name in FOREIGN_ERRORS:
        module, _, attribute = name.rpartition(".")
        try:
            exception_class = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            continue  # a library we know of but do not need
        assert issubclass(exception_class, Exception), name


def test_an_error_without_words_is_named_by_its_class():
    assert str(to_call_error(KeyError())) == "KeyError"
    assert str(to_call_error(ValueError("bad"))) == "ValueError: bad"
    assert isinstance(to_call_error(ValueError("bad")), CallError)


def test_a_cached_result_lives_as_long_as_it_said_and_dies_with_its_tool():
    clock = Clock()
    cache = ResultCache(clock=clock)
    capability = ToolCapability(name="t", description="")
    cached_tool = Tool(spec=ToolSpec(tool_id="t", capabilities=[capability]), handler="x")
    changed = Tool(spec=ToolSpec(tool_id="t", capabilities=[capability], description="new"), handler="x")
    key = cache.key(cached_tool, capability, {"a": 1, "b": 2}, Principal(), None)
    same = cache.key(cached_tool, capability, {"b": 2, "a": 1}, Principal(), None)
    assert key is not None
    assert key == same != cache.key(changed, capability, {"a": 1, "b": 2}, Principal(), None)
    cache.add(key, cached_tool, Output.of(3), ttl=10)
    assert cache.get(key, cached_tool) == Output.of(3)
    clock.now = 11
    assert cache.get(key, cached_tool) is None


def test_another_function_with_the_same_spec_does_not_get_the_result_of_the_first():
    cache = ResultCache()
    capability = ToolCapability(name="t", description="")
    spec = ToolSpec(tool_id="t", capabilities=[capability])
    cached_tool, other = Tool(spec=spec, handler="x", target=object()), Tool(spec=spec, handler="x", target=object())
    cache.add(b"key", cached_tool, Output.of(3), ttl=10)
    assert cache.get(b"key", other) is None


def test_whoever_changes_a_cached_result_changes_only_his_own():
    cache = ResultCache()
    tool = Tool(spec=ToolSpec(tool_id="t"), handler="x")
    output = Output.of({"list": [1]})
    cache.add(b"key", tool, output, ttl=10)
    output.data["list"].append(2)
    first = cache.get(b"key", tool)
    assert first is not None
    first.data["list"].append(3)
    assert cache.get(b"key", tool) == Output.of({"list": [1]})


@pytest.mark.parametrize("odd", [float("nan"), "\ud800", {1: 2}])
def test_arguments_that_are_not_their_own_json_are_not_cached(odd):
    tool = Tool(spec=ToolSpec(tool_id="t"), handler="x")
    assert ResultCache().key(tool, ToolCapability(name="t", description=""), {"a": odd}, Principal(), None) is None


def test_the_cache_forgets_the_oldest_first():
    cache, tool = ResultCache(max_entries=2), Tool(spec=ToolSpec(tool_id="t"), handler="x")
    for key in (b"a", b"b"):
        cache.add(key, tool, Output.of(1), ttl=10)
    cache.get(b"a", tool)
    cache.add(b"c", tool, Output.of(1), ttl=10)
    assert cache.get(b"b", tool) is None
    assert cache.get(b"a", tool) is not None


def test_long_text_is_cut_where_a_sentence_ends():
    assert cut_text("One is here. Two is there. Three", 29) == "One is here. Two is there."
    assert cut_text("第一句话。第二句话。第三句话", 36) == "第一句话。第二句话。"
    assert cut_text("no sentence ends in this text", 20) == "no sentence ends in"


def test_a_long_row_of_dots_is_cut_without_looking_at_each_of_them_again():
    assert cut_text("." * 400_000 + "a" * 1_000, 400_500).endswith("a")


@given(st.text(), st.integers(0, 50))
def test_cut_text_never_has_more_bytes_than_allowed(text, most):
    cut = cut_text(text, most)
    assert len(cut.encode("utf-8", "replace")) <= most
    assert text.startswith(cut)


def test_every_standard_executor_can_be_loaded():
    executors = Executors(AddressGuard(), McpExecutor())
    assert set(executors) >= {"calculator", "command", "echo", "function", "http", "http_request", "openapi", "skill"}
    assert all(hasattr(executors.get(name), "execute") for name in executors)
    assert executors.get("calculator") is executors.get("calculator")
    assert executors.get("nobody") is None


@pytest.mark.integration
def test_an_executor_is_loaded_with_the_first_tool_that_needs_it():
    code = "import sys; from ferrule import ToolEngine; ToolEngine(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ferrule.kinds.function.executor" in loaded
    assert "ferrule.kinds.builtin" not in loaded
