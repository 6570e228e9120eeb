"""The HTTP server of a supervisor: health, metrics, and what the store has. Imported only if the config has `http`."""
