"""Translate Isaac Lab Arena's keys and options, in files and on command lines, into this project's own."""
