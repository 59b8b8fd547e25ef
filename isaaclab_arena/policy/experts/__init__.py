"""Scripted experts of benchmarks made elsewhere, which see nothing but observations."""
