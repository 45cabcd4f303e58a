"""Exact arithmetic in bounded time."""
