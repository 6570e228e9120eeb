"""Worker processes: the pool and its slots in the supervisor, the forkserver, and the worker itself."""
