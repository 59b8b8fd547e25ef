"""Measure whether the same bits can be promised, and choose the batch size for a policy's network so that they can."""
