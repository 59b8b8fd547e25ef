"""Connect to models in other processes: messages and connections."""
