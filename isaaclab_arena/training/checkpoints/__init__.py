"""Save, evaluate and export checkpoints."""
