"""Commands that read the files of a run: tables, proofs, other formats."""
