"""`supervisor bench`: this configuration measured on this machine."""
