"""Scenes, robots and poses as MuJoCo models."""
