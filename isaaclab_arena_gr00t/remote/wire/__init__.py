"""Messages of policy servers as bytes."""
