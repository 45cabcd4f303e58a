"""Tools that use the web."""
