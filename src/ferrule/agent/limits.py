"""How much a run may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrule.errors import SetupError
from ferrule.messages import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Where a run ends though it is not done. None means: no limit."""

    turns: int | None = 20
    calls: int | None = 100
    calls_per_turn: int = 32
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    """In whatever `price` says."""
    price: Callable[[Usage], float] | None = None
    max_retries: int = 3
    """After so many failures of one tool the model is shown others."""

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "calls_per_turn", "tokens", "seconds", "cost", "max_retries"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SetupError(f"the limit {name} must be more than 0, not {value!r}; None means no limit")
        if self.cost is not None and self.price is None:
            raise SetupError("a limit on cost needs a price: a function that says what a Usage costs")

    def reached(self, *, turns: int, calls: int, seconds: float, usage: Usage) -> str | None:
        """Which limit a run has come to, in words; None when it may go on."""
        if self.turns is not None and turns >= self.turns:
            return f"it took {turns} turns, and {self.turns} is the most"
        if self.calls is not None and calls >= self.calls:
            return f"it made {calls} calls, and {self.calls} is the most"
        if self.tokens is not None and usage.total_tokens >= self.tokens:
            return f"it used {usage.total_tokens} tokens, and {self.tokens} is the most"
        if self.seconds is not None and seconds >= self.seconds:
            return f"it took {seconds:.0f} s, and {self.seconds:g} is the most"
        if self.cost is not None and self.price is not None and self.price(usage) >= self.cost:
            return f"it cost {self.price(usage):.4g}, and {self.cost:g} is the most"
        return None
