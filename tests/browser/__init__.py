"""What report.html does in a browser."""
