"""The Python interface: evaluate and compare policies, make environments and read results from your own program."""
