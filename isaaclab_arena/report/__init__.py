"""The page of a run: one file, ``report.html``, that shows results, films and comparisons without a server."""

EMBEDDED_MB = 15.0
"""How much of films goes into a page by default [10^6 bytes]."""
