"""A base of both ends of a policy server's wire: ZeroMQ's frames, and msgpack messages with arrays, read carefully."""
