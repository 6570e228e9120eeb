"""The dashboard: pages for people, rendered on the thread that reads the store, and kept up to date by server-sent events."""
