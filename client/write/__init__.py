"""Writes.

writer.py    writes to one table: rows that travel together, and calls with many rows
bulk.py      one call with many rows: encoded by columns, cut into batches, bounded in memory
inputs.py    rows and keys as callers give them, checked without converting them
alter.py     changes of a table's columns, made together
"""
