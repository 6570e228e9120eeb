"""Code that runs in the supervisor: its side of the workers and of the forkserver."""
