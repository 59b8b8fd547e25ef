"""Tests that environments and policies of your own inherit."""
