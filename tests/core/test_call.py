"""When a failed call may have had its effect all the same, nothing else may be tried in its place."""

import pytest

from ferrule import ToolExecutionResult
from ferrule.core.spec import Effects
from ferrule.errors import CANCELLED, EXECUTION_ERROR, TIMEOUT, VALIDATION_ERROR


def failure(error_type: str, **metadata: str) -> ToolExecutionResult:
    return ToolExecutionResult(False, "pay", error="no", error_type=error_type, metadata=dict(metadata))


@pytest.mark.parametrize(
    ("result", "is_possible"),
    [
        (failure(TIMEOUT), True),
        (failure(CANCELLED), True),
        (failure(EXECUTION_ERROR, outcome="unknown"), True),
        (failure(EXECUTION_ERROR), False),
        (failure(VALIDATION_ERROR), False),
        (ToolExecutionResult(True, "pay"), False),
    ],
)
def test_a_stopped_call_or_one_of_unknown_outcome_may_have_taken_effect(result: ToolExecutionResult, is_possible: bool):
    assert result.may_have_taken_effect(Effects()) == is_possible


def test_what_may_be_repeated_does_no_harm_a_second_time():
    assert not failure(TIMEOUT).may_have_taken_effect(Effects(read_only=True), Effects(idempotent=True))


def test_one_tool_with_effects_among_several_is_enough():
    assert failure(TIMEOUT).may_have_taken_effect(Effects(read_only=True), Effects())
