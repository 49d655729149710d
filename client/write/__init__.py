"""Writes.

writer.py    writes to one table: single rows, and calls with many rows
bulk.py      one call with many rows: encoded by columns, cut into batches, bounded in memory
forms.py     the two forms in which rows travel: packed one by one, or in columns
inputs.py    the forms of rows and keys
streams.py   rows that arrive batch by batch
alter.py     changes of a table's columns, made together
"""
