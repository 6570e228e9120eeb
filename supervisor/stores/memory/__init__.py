"""The memory store: for tests, and for jobs that may be lost with their process."""
