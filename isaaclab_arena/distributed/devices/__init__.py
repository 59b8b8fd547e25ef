"""Which GPU or CPU a process uses."""
