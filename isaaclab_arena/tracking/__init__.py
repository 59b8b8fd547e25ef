"""Show runs in services that keep results: Weights & Biases, TensorBoard and MLflow, while they go on or afterwards."""
