"""What broke when strangers attacked: each file is named by its subject."""
