"""Functions become tools: the schema comes from the type hints, the words from the docstring."""

from ferrule import tool


@tool(tags=["math"], read_only=True)
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b
