"""What runs in a worker process, around a job."""
