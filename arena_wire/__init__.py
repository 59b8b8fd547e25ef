"""What both ends of a policy server's wire share: ZeroMQ's frames, and msgpack messages with arrays, read with care."""
