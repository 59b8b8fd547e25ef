"""Policies: the model behind one method, here or in another process."""
