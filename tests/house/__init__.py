"""The shape of the package, measured: `python -m tests.house` prints it, and tests hold it to its limits."""
