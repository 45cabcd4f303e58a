"""Checking the arguments of a call."""

from ferrule.catalog.validation.validator import ParameterCheck, ToolParameterValidator

__all__ = ["ParameterCheck", "ToolParameterValidator"]
