"""The loop: reset, act, step, observe, end."""
