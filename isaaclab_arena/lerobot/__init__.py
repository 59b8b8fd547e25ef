"""LeRobot datasets: written from recordings, read from any writer, and converted to recordings."""
