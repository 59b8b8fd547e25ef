"""The layers of the model."""
