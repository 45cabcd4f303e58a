"""Requests to addresses that were checked."""
