"""What a crash leaves behind: finding it, repairing it, setting it aside."""
