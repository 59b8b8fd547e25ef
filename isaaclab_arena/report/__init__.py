"""The page of a run: one file, ``report.html``, that shows results, films and comparisons without a server."""
