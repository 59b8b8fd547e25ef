"""Policies that ask servers: protocols, connections, and the policies of openpi and vla-eval."""
