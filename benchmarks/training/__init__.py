"""Benchmarks of training: throughput, ranks, what they exchange, evaluation during training."""
