"""Worker processes: the pool in the supervisor, the forkserver, and the worker itself."""
