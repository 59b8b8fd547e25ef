"""Environments: embodiment, objects, scene and task put together."""
