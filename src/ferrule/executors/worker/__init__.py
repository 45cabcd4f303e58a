"""Processes that run functions one after another, and can be killed."""
