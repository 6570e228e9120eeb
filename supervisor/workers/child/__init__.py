"""Code that runs in a worker, around its jobs."""
