"""A small vision-language-action model behind Isaac-GR00T's public interface."""

HONOURED_OPTIONS = frozenset({"noise_seeds", "continued"})
"""Options of a query that ``Gr00tPolicy`` supports."""
