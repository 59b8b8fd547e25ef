"""What every benchmark uses: options, machine line, paired timing, tables, pages of results, processes."""
