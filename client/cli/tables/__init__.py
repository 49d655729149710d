"""`ebla table`.

tables.py      create, list, describe, drop, recall
altering.py    alter
scanning.py    scan, export
rows.py        get, put, delete, count
schemas.py     the schema of a new table, from flags, YAML or a data file
"""
