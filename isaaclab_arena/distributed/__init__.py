"""The identity of this process among the ranks, its device, and the exchange between ranks at start-up."""
