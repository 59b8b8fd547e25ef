"""Physics and scenes."""
