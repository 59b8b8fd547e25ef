"""Gymnasium environments, in this interpreter or in workers of their own."""
