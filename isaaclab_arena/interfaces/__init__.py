"""The contracts between environments, policies and observers."""
