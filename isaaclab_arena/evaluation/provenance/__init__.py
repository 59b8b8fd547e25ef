"""Which versions, machine and source files a result comes from."""
