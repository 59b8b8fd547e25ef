"""Policies that come along, and the table of their names."""
