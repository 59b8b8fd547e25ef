"""Run recorded episodes again, and compare them step by step."""
