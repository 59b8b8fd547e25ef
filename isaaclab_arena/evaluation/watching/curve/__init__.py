"""Success by step of a training: the points of a watch, their table and their picture."""
