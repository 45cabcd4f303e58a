"""`ferrule`: tools from a terminal."""

from ferrule.cli.app import main

__all__ = ["main"]
