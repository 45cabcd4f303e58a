"""How a hub is set up."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """How many candidates are called, when, and how long the hub waits for them. Times are seconds."""

    max_parallel: int = 3
    """Candidates that run at once."""
    stagger: float = 0.05
    """Between the starts of two racers, as long as nothing is known about the time the first one takes."""
    extra_share: float = 0.2
    """Racers started while others still run, per race, in the long run."""
    extra_burst: int = 10
    """How many of these may be saved up, and are there at the beginning."""
    patience: float = 1.0
    """When answers are combined: how long the others have after the first, or twice its own time if that is more.

    `math.inf` waits for all of them, as long as their own time-outs let them run.
    """
    synthesis_timeout: float = 10.0
    """How long the model has to combine answers; after that they are merged without it."""

    def __post_init__(self) -> None:
        if self.max_parallel < 1:
            raise SetupError(f"max_parallel must be at least 1, not {self.max_parallel!r}")
        for name in ("stagger", "extra_share", "extra_burst", "patience"):
            if not getattr(self, name) >= 0:
                raise SetupError(f"{name} must be 0 or more, not {getattr(self, name)!r}")
        if not self.synthesis_timeout > 0:
            raise SetupError(f"synthesis_timeout must be more than 0 seconds, not {self.synthesis_timeout!r}")
