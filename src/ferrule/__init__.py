"""One governed runtime for every tool a language model may use."""

__version__ = "0.1.0"
