"""A source, and its rows as Arrow batches with their places. Nothing here needs Spark or a cluster.

files.py      the files of a path, a glob or a directory; their format and compression
dialect.py    encoding, separator, decimal mark and header of a CSV file
readers.py    the rows of one file, in parts, with their row numbers
decoded.py    the bytes of a CSV file as UTF-8, and the refusal of unclear backslashes
int96.py      parquet's old timestamps, in microseconds or nanoseconds
pieces.py     record batches in pieces of bounded size
types.py      text to values of a column's type, and the types of text
source.py     a recognised source, and the schema of its rows
texts.py      rows of Arrow as text, also nanoseconds
notes.py      what surprises in the columns, for people
fitting.py    rows as a table takes them, and the rows that do not fit
check.py      one pass over a source before anything is written: counts, rows that do not fit, repeated keys
"""
