"""Reads.

reader.py      gets: linearizable reads by whole keys
scan.py        what a scan reads, and the forms of its result
frames.py      results for pandas, Polars and DuckDB
scan_run.py    reads the blocks: several tablets at a time, a bounded number of blocks ahead
"""
