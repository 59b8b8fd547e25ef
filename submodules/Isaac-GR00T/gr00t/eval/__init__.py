"""Programs around a policy."""
