"""Robots: the built-in ones, those that a file describes, and those of MuJoCo Menagerie."""
