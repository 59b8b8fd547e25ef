"""Decisions of finished runs, taken again: the evidence by episode, its picture, and other orders of the episodes."""
