"""Choose the GPU or CPU of a process."""
