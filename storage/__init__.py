"""Formats of bytes on disk and on the wire, and the disk itself. Nothing here knows a role.

environment.py    the interface of a disk: ordered maps with atomic, durable, grouped commits
schema.py         table schemas
columns.py        columns and their types
arrow_types.py    columns from Arrow's types
space.py          free space on a file system, and protections against running out of it
errors.py         errors of storage, and the root of every error that ebla raises
rows/             rows and keys as bytes; alterations; which tablet a row is in
predicates/       conditions on rows, built by clients and evaluated by servers
logs/             log entries, the shared log of a server, the private log of a tablet
runs/             rows on disk as sorted runs of blocks, column by column
tablets/          a replica's rows: memtables, flushes, answers of writes, quarantine, local reads
lmdb/             environments on a real disk
directories/      the owner of a role's directory; small records in it
"""
