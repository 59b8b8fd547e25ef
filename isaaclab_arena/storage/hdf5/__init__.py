"""Read and write episodes and datasets as HDF5 files."""
