"""The programs that make the site from docs/: `make docs`."""
