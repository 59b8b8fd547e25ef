"""The Python interface: evaluate policies, make environments and read results from a program of one's own."""
