"""The files of a LeRobot dataset: tables, videos, statistics."""
