"""The included models, motions and descriptions as files, and Isaac Lab Arena's registration decorators."""
