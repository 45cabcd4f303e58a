"""What else to try after a failure, best first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from ferrule.errors import SpecError
from ferrule.memory.adjustments.call import Adjustment, FailedCall
from ferrule.memory.adjustments.choices import choices_named_by_the_error
from ferrule.memory.adjustments.paths import other_paths
from ferrule.memory.adjustments.ranges import numbers_within_range
from ferrule.memory.adjustments.repair import repaired_by_the_schema
from ferrule.memory.adjustments.selectors import other_selectors
from ferrule.memory.adjustments.timeouts import longer_timeouts
from ferrule.memory.adjustments.urls import mended_urls
from ferrule.spec import ToolCapability
from ferrule.validation import ParameterCheck

MOST_SUGGESTED: Final = 10


def suggest_adjustments(
    capability: ToolCapability,
    parameters: Mapping[str, Any],
    error: str,
    observations: Sequence[str] = (),
    *,
    avoid: Collection[str] = (),
) -> list[Adjustment]:
    """Other parameters that may work where these failed, best first; each fits the schema and says why.

    Observations are texts that earlier calls gave, the newest last. No parameter is set to a text in `avoid`.
    """
    try:
        passes = _Passing(capability, parameters)
    except SpecError:  # nothing can be called that way, however it is put
        return []
    call = FailedCall.of(capability, parameters, error, observations, avoid)
    offered = chain(
        repaired_by_the_schema(call),
        choices_named_by_the_error(call),
        numbers_within_range(call),
        mended_urls(call),
        other_paths(call),
        other_selectors(call),
        longer_timeouts(call),
    )
    good = _worth_trying(sorted(offered, key=lambda adjustment: -adjustment.confidence), call, passes)
    return list(islice(good, MOST_SUGGESTED))


class _Passing:
    """Tells whether arguments pass: by the letter of the schema where the failed ones did, else leniently."""

    def __init__(self, capability: ToolCapability, failed: Mapping[str, Any]) -> None:
        import jsonschema_rs  # 30 ms to import: only when something failed

        self._lenient = ParameterCheck(capability)
        self._is_valid = jsonschema_rs.validator_for(capability.schema, offline=True).is_valid
        self._by_the_letter = self._holds(dict(failed))

    def __call__(self, parameters: dict[str, Any]) -> bool:
        return self._holds(parameters) or (not self._by_the_letter and self._lenient.check(parameters).is_valid)

    def _holds(self, parameters: dict[str, Any]) -> bool:
        try:
            return bool(self._is_valid(parameters))
        except ValueError:  # a value JSON has no word for
            return False


def _worth_trying(offered: Iterable[Adjustment], call: FailedCall, passes: _Passing) -> Iterator[Adjustment]:
    seen = [call.parameters]
    for adjustment in offered:
        values = [adjustment.parameters.get(name) for name in adjustment.changed]
        known_to_fail = any(isinstance(value, str) and value in call.avoid for value in values)
        if not known_to_fail and adjustment.parameters not in seen and passes(adjustment.parameters):
            seen.append(adjustment.parameters)
            yield adjustment
