"""Metrics for Prometheus, and the access log.

Calls, requests, costs and decisions are counted as they end; slots, queues, sessions and the store are read when they
are asked for. The workers of one `ferrule serve` give one answer: each writes its values into a file, every few seconds
and when another worker is asked for metrics, which adds them up. The counters of a worker that has ended stay counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.engine import ToolEngine
from ferrule.errors import REJECTED
from ferrule.server.access import API_PREFIXES, PUBLIC_PATHS
from ferrule.server.listening import is_internal
from ferrule.server.responses import is_endless
from ferrule.telemetry.http import find_route

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger("ferrule.server")
access_logger = logging.getLogger("ferrule.access")

MAX_LABELS: Final = 500
"""Different values of a metric's labels; further ones are counted as `other`."""
OPEN_LABELS: Final = frozenset({"bucket", "model", "name", "route", "tenant", "tool"})
"""Labels whose values may be many."""
MAX_SAMPLES: Final = 720
SAMPLE_INTERVAL: Final = 5.0
BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
FILE_SUFFIX: Final = ".metrics"
Labels: TypeAlias = tuple[str, ...]
HTTP_DURATION: Final = "ferrule_http_request_duration_seconds"
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


@dataclass(frozen=True, slots=True)
class MetricKind:
    """What a metric counts, by which labels."""

    type: str
    text: str
    labels: Labels


METRICS: Final = {
    "ferrule_tool_call_duration_seconds": MetricKind("histogram", "How long tools ran.", ("tool",)),
    "ferrule_tool_calls": MetricKind("counter", "Calls that have ended.", ("tool", "status")),
    "ferrule_tool_calls_rejected": MetricKind("counter", "Calls that were rejected.", ("reason", "bucket")),
    "ferrule_cost": MetricKind("counter", "What calls and models' replies cost.", ("kind", "name", "tenant")),
    "ferrule_model_requests": MetricKind("counter", "Requests to models.", ("model", "status")),
    "ferrule_model_tokens": MetricKind("counter", "Tokens that models used.", ("model", "direction")),
    "ferrule_approval_requests": MetricKind("counter", "Calls that people were asked about.", ("tool",)),
    "ferrule_approval_decisions": MetricKind("counter", "What people decided about calls.", ("tool", "decision")),
    HTTP_DURATION: MetricKind(
        "histogram",
        "How long requests took, without streams that have no end. Refused ones have the status 429.",
        ("method", "route", "status"),
    ),
    "ferrule_store_failures": MetricKind("counter", "What the store could not record, or not at first.", ()),
    "ferrule_store_backlog": MetricKind("gauge", "Bytes of records that wait for the database (memory: lines).", ()),
    "ferrule_mcp_sessions": MetricKind("gauge", "Open sessions of MCP clients.", ("server",)),
    "ferrule_queue_depth": MetricKind("gauge", "Calls that wait for a slot.", ("bucket",)),
    "ferrule_slots_in_use": MetricKind("gauge", "Calls that have a slot.", ("bucket",)),
    "ferrule_slots": MetricKind(
        "gauge", "Slots of a bucket; leased and adaptive ones as they are now.", ("bucket", "limit")
    ),
}


class MetricValues:
    """The values of one process, or of several added up."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, list[float]]] = {name: {} for name in METRICS}
        """A list has one number; for a histogram, one for each bucket, and the sum of all observed values."""

    def add(self, name: str, labels: Labels, amount: float = 1.0) -> None:
        self._find(name, labels, 1)[0] += amount

    def observe(self, name: str, labels: Labels, value: float) -> None:
        numbers = self._find(name, labels, len(BUCKETS) + 2)
        numbers[bisect_left(BUCKETS, value)] += 1
        numbers[-1] += value

    def _find(self, name: str, labels: Labels, size: int) -> list[float]:
        values = self._values[name]
        numbers = values.get(labels)
        if numbers is None:
            if len(values) >= MAX_LABELS:
                named = zip(METRICS[name].labels, labels, strict=True)
                labels = tuple("other" if label in OPEN_LABELS else value for label, value in named)
            numbers = values.setdefault(labels, [0.0] * size)
        return numbers

    def encode(self) -> bytes:
        return json.dumps({name: list(values.items()) for name, values in self._values.items()}).encode()

    def add_encoded(self, encoded: bytes, *, with_gauges: bool) -> None:
        """Add the values of another process. A shared limit is the same for all: it is not added up."""
        for name, values in json.loads(encoded).items():
            if name not in METRICS or (METRICS[name].type == "gauge" and not with_gauges):
                continue
            shared = {labels[0] for labels, _ in values if labels[1:] == ["leased"]}
            for labels, numbers in values:
                own = self._find(name, tuple(labels), len(numbers))
                is_shared = labels[1:] == ["configured"] and labels[0] in shared
                own[:] = numbers if is_shared else [a + b for a, b in zip(own, numbers, strict=True)]

    def count_by(self, name: str, label: str) -> Counter[str]:
        at, counts = METRICS[name].labels.index(label), Counter[str]()
        for labels, (number, *_) in self._values[name].items():
            counts[labels[at]] += int(number)
        return counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as a collector of `prometheus_client`."""
        from prometheus_client import core

        families: dict[str, Any] = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        for name, kind in METRICS.items():
            family = families[kind.type](name, kind.text, labels=kind.labels)
            for labels, numbers in self._values[name].items():
                if kind.type == "histogram":
                    limits = [*map(str, BUCKETS), "+Inf"]
                    buckets = list(zip(limits, accumulate(numbers[:-1]), strict=True))
                    family.add_metric(labels, buckets, sum_value=numbers[-1])
                else:
                    family.add_metric(labels, numbers[0])
            yield family


class ServerMetrics:
    """Counts what happens in this process, and answers for all workers of a `ferrule serve`."""

    def __init__(
        self, engine: ToolEngine, server_id: str = "", folder: Path | None = None, sessions: Sessions = dict
    ) -> None:
        """`folder` has the files of all workers; None if there is one. `sessions` counts those of MCP clients."""
        self._engine, self._folder, self._sessions = engine, folder, sessions
        self._own_file = f"{server_id}{FILE_SUFFIX}"
        self.values = MetricValues()
        self._tools: set[str] = set()
        self._failures = 0
        types = {ToolEngineEventType.APPROVAL_REQUESTED, ToolEngineEventType.APPROVAL_DECIDED}
        engine.subscribe(self._count_call, {ToolEngineEventType.AFTER_TOOL_CALL})
        engine.subscribe(self._count_reply, {ToolEngineEventType.MODEL_ENDED})
        engine.subscribe(self._count_approval, types)

    def render(self, living: Collection[str] = ()) -> bytes:
        """Return the metrics of all workers in Prometheus' text format; gauges of those that are `living`."""
        from prometheus_client import CollectorRegistry, generate_latest

        values = MetricValues()
        # Written first: what was reported once must not be missing when this worker is killed.
        values.add_encoded(self.write(), with_gauges=True)
        for file in () if self._folder is None else self._folder.glob(f"*{FILE_SUFFIX}"):
            if file.name != self._own_file:
                with suppress(OSError):
                    is_living = file.name.removesuffix(FILE_SUFFIX) in living
                    values.add_encoded(file.read_bytes(), with_gauges=is_living)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(values)
        return generate_latest(registry)

    def write(self) -> bytes:
        """Write the values of this worker, for the others, and return them."""
        encoded = self._read_now()
        if self._folder is not None:
            path = self._folder / self._own_file
            try:
                path.with_suffix(".new").write_bytes(encoded)
                os.replace(path.with_suffix(".new"), path)
            except OSError as error:
                logger.warning("error=<%s> | the metrics of this worker are not written", error.strerror)
        return encoded

    def _read_now(self) -> bytes:
        """Return the counters of this process, with the gauges of this moment."""
        failures = self._engine.store.failures
        self.values.add("ferrule_store_failures", (), failures - self._failures)
        self._failures = failures
        now = MetricValues()
        now.add_encoded(self.values.encode(), with_gauges=False)
        now.add("ferrule_store_backlog", (), self._engine.store.backlog)
        for server, number in self._sessions().items():
            now.add("ferrule_mcp_sessions", (server,), number)
        for bucket, state in islice(self._engine.concurrency.get_bucket_metrics().items(), MAX_LABELS):
            now.add("ferrule_queue_depth", (bucket,), state["queue"] or 0)
            now.add("ferrule_slots_in_use", (bucket,), state["current"] or 0)
            for name, key in (("configured", "limit"), ("leased", "leased"), ("adaptive", "adaptive_limit")):
                if (slots := state.get(key)) is not None:
                    now.add("ferrule_slots", (bucket, name), slots)
        return now.encode()

    def _count_call(self, event: ToolEngineEvent) -> None:
        result: Any = event.data["result"]
        tool = self._label(str(event.tool_name))
        status = "success" if result.is_success else result.error_type or "failed"
        self.values.add("ferrule_tool_calls", (tool, status))
        if result.error_type == REJECTED:
            reason, bucket = result.metadata.get("reason"), result.metadata.get("bucket")
            self.values.add("ferrule_tool_calls_rejected", (str(reason or ""), str(bucket or "")))
        if result.execution_time > 0:
            self.values.observe("ferrule_tool_call_duration_seconds", (tool,), result.execution_time)
        if cost := result.metadata.get("cost"):
            self._add_cost("tool", tool, event, cost)

    def _count_reply(self, event: ToolEngineEvent) -> None:
        model, reply = str(event.data["model"]), event.data.get("reply")
        self.values.add("ferrule_model_requests", (model, "success" if reply is not None else "failed"))
        if reply is not None:
            self.values.add("ferrule_model_tokens", (model, "input"), reply.usage.input_tokens)
            self.values.add("ferrule_model_tokens", (model, "output"), reply.usage.output_tokens)
        if cost := event.data.get("cost"):
            self._add_cost("model", model, event, cost)

    def _count_approval(self, event: ToolEngineEvent) -> None:
        tool, state = self._label(str(event.tool_name)), event.data["request"].state
        if event.event_type is ToolEngineEventType.APPROVAL_REQUESTED:
            self.values.add("ferrule_approval_requests", (tool,))
        else:
            self.values.add("ferrule_approval_decisions", (tool, state))

    def _add_cost(self, kind: str, name: str, event: ToolEngineEvent, cost: float) -> None:
        tenant = "" if event.principal is None else event.principal.tenant
        self.values.add("ferrule_cost", (kind, name, tenant), cost)

    def _label(self, name: str) -> str:
        """Return the name of a known tool; what callers invent must not become labels."""
        if name in self._tools:
            return name
        if len(self._tools) >= MAX_LABELS or not self._engine.registry.snapshot().may_contain(name):
            return "other"
        self._tools.add(name)
        return name


Sessions: TypeAlias = Callable[[], dict[str, int]]


class ObservedRequests:
    """The layer that counts the requests of clients and writes the access log, a line for each at the level `info`."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._values = app, metrics.values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_internal(scope):  # the worker that took the request has counted it
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._observe(scope, str(status or 499), time.perf_counter() - started)

    def _observe(self, scope: Scope, status: str, seconds: float) -> None:
        path, method = scope["path"], scope["method"] if scope["method"] in _METHODS else "other"
        route = "other"
        if "endpoint" in scope:
            route = find_route(scope) if path.startswith(API_PREFIXES) or path in _OWN_PATHS else "page"
        if not is_endless(scope):
            self._values.observe(HTTP_DURATION, (method, route, status), seconds)
        level = logging.DEBUG if path in PUBLIC_PATHS else logging.INFO
        if access_logger.isEnabledFor(level):
            client = scope.get("state", {}).get("client")
            fields = {
                "method": method,
                "route": route,  # and not the path, into which clients write what they like, also secrets
                "http_status": int(status),
                "seconds": round(seconds, 6),
                "principal": None if client is None else client.name,
                "address": (scope.get("client") or [None])[0],
            }
            text = "method=<%s>, route=<%s>, status=<%s>, seconds=<%.3f> | requested"
            access_logger.log(level, text, method, route, status, seconds, extra=fields)


_OWN_PATHS: Final = PUBLIC_PATHS | {"/metrics", "/openapi.json"}


class LimitSamples:
    """The slots and queues of the last half hour, for plots. While nothing changes, nothing is added."""

    def __init__(self, engine: ToolEngine, metrics: ServerMetrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._samples: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)

    async def run(self) -> None:
        """Take samples, and write the metrics for other workers, until it is cancelled."""
        while True:
            self.take()
            self._metrics.write()
            await asyncio.sleep(SAMPLE_INTERVAL)

    def take(self) -> None:
        rejections = self._metrics.values.count_by("ferrule_tool_calls_rejected", "bucket")
        buckets = {
            name: {"current": state["current"] or 0, "queue": state["queue"] or 0, "rejected": rejections[name]}
            for name, state in islice(self._engine.concurrency.get_bucket_metrics().items(), MAX_LABELS)
        }
        if not self._samples or self._samples[-1]["buckets"] != buckets:
            if self._samples:  # until now it was as before: a line between the two would be wrong
                self._samples.append({**self._samples[-1], "at": time.time() - SAMPLE_INTERVAL})
            self._samples.append({"at": time.time(), "buckets": buckets})

    def describe(self) -> list[dict[str, Any]]:
        """Return the samples, the oldest first, with one of this moment."""
        self.take()
        return [*self._samples, {**self._samples[-1], "at": time.time()}]
