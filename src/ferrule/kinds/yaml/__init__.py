"""Tools described in YAML files."""
