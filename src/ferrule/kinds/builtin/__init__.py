"""Executors that need nothing but Python: `echo` and `calculator`."""
