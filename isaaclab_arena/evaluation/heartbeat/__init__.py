"""What each rank says about itself once a second, and who is alive by that."""
