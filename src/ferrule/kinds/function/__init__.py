"""Python functions, run where they can be ended."""
