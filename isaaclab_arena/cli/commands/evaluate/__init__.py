"""Commands that check job files, and go on with runs."""
