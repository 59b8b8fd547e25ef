"""Messages between policy server and client as bytes."""
