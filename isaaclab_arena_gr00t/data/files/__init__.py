"""Read and write the files of a LeRobot dataset: tables, videos, statistics."""
