"""What else to try after a failure, best first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from ferrule.catalog.validation import ParameterCheck
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import ToolCapability
from ferrule.errors import SpecError
from ferrule.memory.adjustments.arguments import (
    correct_url,
    fit_arguments_to_schema,
    lengthen_timeout,
    use_choice_from_error,
    use_observed_path,
)
from ferrule.memory.adjustments.failed_call import Adjustment, FailedCall
from ferrule.memory.adjustments.selectors import replace_selector

MAX_SUGGESTIONS: Final = 10

_STRATEGIES: Final = (
    fit_arguments_to_schema,
    use_choice_from_error,
    correct_url,
    use_observed_path,
    replace_selector,
    lengthen_timeout,
)


def suggest_adjustments(
    capability: ToolCapability,
    parameters: Mapping[str, Any],
    error: str,
    observations: Sequence[str] = (),
    *,
    avoid: Collection[str] = (),
) -> list[Adjustment]:
    """Other parameters that may work where these failed, best first; each fits the schema and has a reason.

    Observations are texts that earlier calls returned, the newest last. No parameter is set to a text in `avoid`.
    """
    try:
        accepts = _ArgumentCheck(capability, parameters)
    except SpecError:  # the schema itself is broken, so no arguments can pass
        return []
    call = FailedCall.of(capability, parameters, error, observations, avoid)
    suggestions = chain.from_iterable(strategy(call) for strategy in _STRATEGIES)
    ranked = sorted(suggestions, key=lambda adjustment: -adjustment.confidence)
    return list(islice(_filter_usable(ranked, call, accepts), MAX_SUGGESTIONS))


class _ArgumentCheck:
    """Whether arguments pass: strictly by the schema if the failed ones did, else leniently."""

    def __init__(self, capability: ToolCapability, failed: Mapping[str, Any]) -> None:
        self._lenient = ParameterCheck(capability)
        self._is_valid = BoundedValidator(capability.schema).is_valid
        self._is_strict = self._passes_schema(dict(failed))

    def __call__(self, parameters: dict[str, Any]) -> bool:
        if self._passes_schema(parameters):
            return True
        return not self._is_strict and self._lenient.check(parameters).is_valid

    def _passes_schema(self, parameters: dict[str, Any]) -> bool:
        try:
            return self._is_valid(parameters)
        except ValueError:  # a value that JSON cannot represent
            return False


def _filter_usable(ranked: Iterable[Adjustment], call: FailedCall, accepts: _ArgumentCheck) -> Iterator[Adjustment]:
    """Without duplicates, without values known to fail, and only what passes the schema."""
    offered = [call.parameters]
    for adjustment in ranked:
        values = [adjustment.parameters.get(name) for name in adjustment.changed]
        is_avoided = any(isinstance(value, str) and value in call.failed_values for value in values)
        if not is_avoided and adjustment.parameters not in offered and accepts(adjustment.parameters):
            offered.append(adjustment.parameters)
            yield adjustment
