"""Programs that write files of this repository: model cards, the reference motion, the task catalogue."""
