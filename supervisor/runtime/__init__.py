"""The life of one supervisor: start, serve, reload, drain, end."""
