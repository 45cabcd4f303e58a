"""Evaluation: suites of tasks with checks, repeated and compared."""

from ferrule.evaluation.evaluate import EvaluationResult, Evaluator, wilson_interval
from ferrule.evaluation.suite import Environment, Suite, read_suite

__all__ = ["Environment", "EvaluationResult", "Evaluator", "Suite", "read_suite", "wilson_interval"]
