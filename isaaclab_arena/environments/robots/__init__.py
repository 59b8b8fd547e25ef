"""Robots: the built-in ones, robots that a file describes, and robots of MuJoCo Menagerie."""
