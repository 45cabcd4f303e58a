"""Calling the operations of an API that an OpenAPI document describes."""
