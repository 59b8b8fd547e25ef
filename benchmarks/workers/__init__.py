"""Environments in workers of other interpreters: their speed beside plain loops, their overhead and memory."""
