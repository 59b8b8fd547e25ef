"""Attacks as a stranger would make them: on files, messages, servers and what they may cost."""
