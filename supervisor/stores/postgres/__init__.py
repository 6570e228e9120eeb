"""The PostgreSQL store: one schema, any number of machines."""
