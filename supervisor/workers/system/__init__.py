"""Linux calls, the process tree, and fresh interpreters: used by every process."""
