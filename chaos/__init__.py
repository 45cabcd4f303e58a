"""Breaks things on purpose and checks that the promises of docs/reliability.md hold: `make chaos`."""
