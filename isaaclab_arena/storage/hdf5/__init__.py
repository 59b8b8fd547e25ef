"""Episodes and datasets as HDF5 files."""
