"""Rows on disk as sorted runs of blocks, column by column.

blocks.py      a block as bytes: some thousand rows in key order
parts.py       the parts of a block, and the bytes of some of its rows in each of them
pieces.py      rows in key order, column by column, in memory
order.py       the newest row of each key, of several sources
filters.py     a filter of a run's keys
directory.py   which runs a tablet has, and which blocks a run has
reading.py     single keys and ranges of all runs together
writing.py     new runs: of a flush, and of the steps of a compaction
"""
