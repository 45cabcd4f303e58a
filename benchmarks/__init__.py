"""Ferrule and other libraries, compared, each in a process and an environment of its own. Start with `run.py`."""
