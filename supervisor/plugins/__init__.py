"""Plugins: discovery, import, checks, hooks and reports."""
