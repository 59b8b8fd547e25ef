"""What policy servers give and cost."""
