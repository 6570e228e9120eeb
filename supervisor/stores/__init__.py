"""Stores of jobs: what every store promises, and the SQLite, PostgreSQL and memory stores."""
