"""What can be known about an action before it is called, found out once."""

from __future__ import annotations

from ferrule.engine.breaker import CircuitBreaker
from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.running import Prepared
from ferrule.engine.standard_executors import Executors
from ferrule.registry import ToolRegistry, action_of
from ferrule.spec import Tool, ToolCapability
from ferrule.validation import ToolParameterValidator


class Preparation:
    """Finds the tool and action a caller means; what it found is kept until the registry changes."""

    def __init__(self, config: ToolEngineConfig, registry: ToolRegistry, executors: Executors) -> None:
        self._config, self._registry, self._executors = config, registry, executors
        self._validator = ToolParameterValidator(strict=config.strict_validation)
        self._known: dict[tuple[str | Tool, str | None], Prepared] = {}
        self._version = -1
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}

    def of(self, wanted: str | Tool, action: str | None) -> Prepared:
        if self._version != self._registry.version:
            self._version = self._registry.version
            self._known.clear()
        prepared = self._known.get((wanted, action))
        if prepared is None:
            prepared = self._prepare(*self._find(wanted, action))
            self._known[wanted, action] = prepared
        return prepared

    def forget(self) -> None:
        self._known.clear()

    def breaker(self, source: str, tool_id: str) -> CircuitBreaker:
        """A tool's circuit outlives the tool's versions: a new version goes the same way."""
        return self._breakers.setdefault((source, tool_id), CircuitBreaker(self._config.breaker))

    def _find(self, wanted: str | Tool, action: str | None) -> tuple[Tool, ToolCapability]:
        if isinstance(wanted, str):
            return self._registry.find(wanted, action)
        self._registry.snapshot().require(wanted)
        return wanted, action_of(wanted, action)

    def _prepare(self, tool: Tool, capability: ToolCapability) -> Prepared:
        limits = tool.spec.limits_of(capability)
        return Prepared(
            tool=tool,
            capability=capability,
            fingerprint=tool.spec.fingerprint,
            check=self._validator.check_of(capability),
            executor=self._executors.get(tool.handler),
            breaker=self.breaker(tool.source, tool.id),
            effects=tool.spec.effects_of(capability),
            bucket=tool.spec.bucket_of(capability),
            timeout=limits.timeout,
            max_output=limits.max_output or self._config.max_output,
            secret_names=capability.secret_names,
        )
