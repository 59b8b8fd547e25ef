"""Encode and decode the messages of policy servers."""
