"""From Python's type hints and docstrings to JSON Schema, and from JSON arguments back to Python values."""

from ferrule.schema.function import FunctionSignature, read_function
from ferrule.schema.normalise import normalise_schema
from ferrule.schema.secret import Secret

__all__ = ["FunctionSignature", "Secret", "normalise_schema", "read_function"]
