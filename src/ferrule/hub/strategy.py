"""Whether the best answer is picked or all are combined: a tool says it, else the kind of tool decides."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias

from ferrule.hub.candidate import ToolCandidate

logger = logging.getLogger("ferrule.hub")

Strategy: TypeAlias = Literal["best", "synthesize"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("best", "synthesize")

ONE_TRUE_ANSWER: Final = ("calculate", "time")
MANY_PARTIAL_ANSWERS: Final = ("search", "extract")
KINDS: Final = (*ONE_TRUE_ANSWER, *MANY_PARTIAL_ANSWERS)
"""Tags that say how answers are to be handled."""


def strategy_for(candidates: Sequence[ToolCandidate], tag: str | None) -> Strategy:
    """What to do with these candidates, asked for with a tag or (None) with a name."""
    said = _said(candidates)
    if said is not None:
        return said
    kinds = {tag} if tag in KINDS else {kind_of(candidate.tool.spec.tags) for candidate in candidates}
    if kinds.intersection(ONE_TRUE_ANSWER):
        return "best"
    if kinds.intersection(MANY_PARTIAL_ANSWERS) or len(candidates) == 2:
        return "synthesize"
    return "best"


def kind_of(tags: Collection[str]) -> str | None:
    said = {tag.casefold() for tag in tags}
    return next((kind for kind in KINDS if kind in said), None)


def _said(candidates: Sequence[ToolCandidate]) -> Strategy | None:
    # By source and name, not in the order of calling: chance must not decide the strategy.
    for candidate in sorted(candidates, key=lambda c: (c.priority, c.key)):
        said = candidate.tool.spec.metadata.get("strategy")
        for strategy in STRATEGIES:
            if said == strategy:
                return strategy
        if said is not None:
            logger.warning("tool=<%s>, strategy=<%r> | unknown, write 'best' or 'synthesize'", candidate.label, said)
    return None
