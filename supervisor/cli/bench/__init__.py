"""`supervisor bench`: measure this configuration on this machine."""
