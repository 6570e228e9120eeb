"""What runs in the supervisor: its end of each worker process and of the forkserver."""
