"""Policies, and the base class a user's own policy derives from."""
