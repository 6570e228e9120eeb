"""The configuration: read from YAML, checked, and explained where it is wrong."""
