"""Plugins: found, imported one by one, checked, and reported."""
