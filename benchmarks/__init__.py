"""Ferrule measured beside its peers, each in a process and an environment of its own. Start with `run.py`."""
