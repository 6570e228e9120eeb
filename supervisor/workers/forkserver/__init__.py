"""Code that runs in the forkserver, which imports the plugins once and forks the workers."""
