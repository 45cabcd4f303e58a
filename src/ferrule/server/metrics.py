"""Metrics for Prometheus: calls, durations and costs, counted as they end; slots and queues, read when asked for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.engine import ToolEngine
from ferrule.errors import REJECTED

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MAX_LABELS: Final = 500
"""Different tools that are counted by name; calls of further ones are counted as `other`."""
MAX_SAMPLES: Final = 720
SAMPLE_INTERVAL: Final = 5.0
BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class CallMetrics:
    """Counts the calls of an engine. A collector of `prometheus_client`."""

    def __init__(self, engine: ToolEngine) -> None:
        self._engine = engine
        self._tools: set[str] = set()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._costs: dict[tuple[str, str, str], float] = defaultdict(float)
        self._model_requests: Counter[tuple[str, str]] = Counter()
        self._model_tokens: Counter[tuple[str, str]] = Counter()
        engine.subscribe(self._count, {ToolEngineEventType.AFTER_TOOL_CALL}, in_task=True)
        engine.subscribe(self._count_reply, {ToolEngineEventType.MODEL_ENDED}, in_task=True)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        durations = HistogramMetricFamily("ferrule_tool_call_duration_seconds", "How long tools ran.", labels=["tool"])
        for tool, counts in self._durations.items():
            durations.add_metric([tool], list(_accumulate(counts)), sum_value=self._seconds[tool])
        yield durations
        for name, text, label_names, counter in (
            ("ferrule_tool_calls", "Calls that have ended.", ["tool", "status"], self._calls),
            ("ferrule_tool_calls_rejected", "Calls that were rejected.", ["reason", "bucket"], self._rejections),
            ("ferrule_cost", "What calls and models' replies cost.", ["kind", "name", "tenant"], self._costs),
            ("ferrule_model_requests", "Requests to models.", ["model", "status"], self._model_requests),
            ("ferrule_model_tokens", "Tokens that models used.", ["model", "direction"], self._model_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=label_names)
            for values, total in counter.items():
                family.add_metric(values, total)
            yield family
        queues = GaugeMetricFamily("ferrule_queue_depth", "Calls that wait for a slot.", labels=["bucket"])
        running = GaugeMetricFamily("ferrule_slots_in_use", "Calls that have a slot.", labels=["bucket"])
        limits = GaugeMetricFamily(
            "ferrule_slots", "Slots of a bucket; leased and adaptive ones as they are now.", labels=["bucket", "limit"]
        )
        for bucket, state in islice(self._engine.concurrency.get_bucket_metrics().items(), MAX_LABELS):
            queues.add_metric([bucket], state["queue"] or 0)
            running.add_metric([bucket], state["current"] or 0)
            for name, key in (("configured", "limit"), ("leased", "leased"), ("adaptive", "adaptive_limit")):
                if (slots := state.get(key)) is not None:
                    limits.add_metric([bucket, name], slots)
        yield from (queues, running, limits)

    def _count(self, event: ToolEngineEvent) -> None:
        result: Any = event.data["result"]
        tool = self._label(str(event.tool_name))
        self._calls[tool, "success" if result.is_success else result.error_type or "failed"] += 1
        if result.error_type == REJECTED:
            reason, bucket = result.metadata.get("reason"), result.metadata.get("bucket")
            labels = str(reason or ""), str(bucket or "")
            is_known = labels in self._rejections or len(self._rejections) < MAX_LABELS
            self._rejections[labels if is_known else (labels[0], "other")] += 1
        if result.execution_time > 0:
            counts = self._durations.setdefault(tool, [0] * (len(BUCKETS) + 1))
            counts[next((n for n, limit in enumerate(BUCKETS) if result.execution_time <= limit), -1)] += 1
            self._seconds[tool] += result.execution_time
        if cost := result.metadata.get("cost"):
            self._add_cost("tool", tool, event, cost)

    def _count_reply(self, event: ToolEngineEvent) -> None:
        model, reply = str(event.data["model"]), event.data.get("reply")
        if (model, "success") not in self._model_requests and len(self._model_requests) >= MAX_LABELS:
            model = "other"
        self._model_requests[model, "success" if reply is not None else "failed"] += 1
        if reply is not None:
            self._model_tokens[model, "input"] += reply.usage.input_tokens
            self._model_tokens[model, "output"] += reply.usage.output_tokens
        if cost := event.data.get("cost"):
            self._add_cost("model", model, event, cost)

    def _add_cost(self, kind: str, name: str, event: ToolEngineEvent, cost: float) -> None:
        tenant = "" if event.principal is None else event.principal.tenant
        labels = kind, name, tenant
        if labels not in self._costs and len(self._costs) >= MAX_LABELS:
            labels = kind, "other", ""
        self._costs[labels] += cost

    def _label(self, name: str) -> str:
        """Return the name of a known tool; what callers invent must not become labels."""
        if name in self._tools:
            return name
        if len(self._tools) >= MAX_LABELS or not self._engine.registry.snapshot().may_contain(name):
            return "other"
        self._tools.add(name)
        return name

    def count_rejections(self) -> Counter[str]:
        """Return the number of rejected calls, by bucket."""
        counts: Counter[str] = Counter()
        for (_, bucket), number in self._rejections.items():
            counts[bucket] += number
        return counts


class LimitSamples:
    """The slots and queues of the last half hour, for plots. While nothing changes, nothing is added."""

    def __init__(self, engine: ToolEngine, metrics: CallMetrics, *, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._metrics, self._clock = engine, metrics, clock
        self._samples: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)

    async def run(self) -> None:
        """Take samples until it is cancelled."""
        while True:
            self.take()
            await asyncio.sleep(SAMPLE_INTERVAL)

    def take(self) -> None:
        rejections = self._metrics.count_rejections()
        buckets = {
            name: {"current": state["current"] or 0, "queue": state["queue"] or 0, "rejected": rejections[name]}
            for name, state in islice(self._engine.concurrency.get_bucket_metrics().items(), MAX_LABELS)
        }
        if not self._samples or self._samples[-1]["buckets"] != buckets:
            if self._samples:  # until now it was as before: a line between the two would be wrong
                self._samples.append({**self._samples[-1], "at": self._clock() - SAMPLE_INTERVAL})
            self._samples.append({"at": self._clock(), "buckets": buckets})

    def describe(self) -> list[dict[str, Any]]:
        """Return the samples, the oldest first, with one of this moment."""
        self.take()
        return [*self._samples, {**self._samples[-1], "at": self._clock()}]


def _accumulate(counts: list[int]) -> Iterator[tuple[str, float]]:
    """Yield the buckets of a histogram, each with the smaller ones."""
    total = 0
    for limit, number in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
        total += number
        yield limit, total
