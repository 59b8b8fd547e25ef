"""What broke when strangers attacked it, and does not break any more."""
