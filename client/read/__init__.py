"""Reads.

reader.py      gets: linearizable reads by whole keys
scan.py        a scan as its caller holds it
scan_run.py    reads the blocks: several tablets at a time, a bounded number of blocks ahead
"""
