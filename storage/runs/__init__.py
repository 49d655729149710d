"""Rows on disk as sorted runs of blocks, column by column.

columns.py     rows in a buffer, column by column
parts.py       the parts of such a buffer, and the bytes of some of its rows in each of them
blocks.py      a block as bytes: some thousand rows in key order
batches.py     a batch of rows as bytes, in the caller's order: in messages, in logs and in memtables
pieces.py      rows in key order, column by column, in memory
order.py       the newest row of each key, of several sources
statistics.py  what the columns of a block hold, so that a condition may leave it out
filters.py     a filter of a run's keys
directory.py   which runs a tablet has, and which blocks a run has
reading.py     single keys and ranges of all runs together
writing.py     new runs: of a flush, and of the steps of a compaction
"""
