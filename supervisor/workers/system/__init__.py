"""Linux calls, the process tree, and fresh interpreters."""
