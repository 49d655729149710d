"""Rows and keys as bytes, a batch at a time or one by one.

rows.py             Arrow batches to keys and values and back, with no Python code per row
codecs.py           the codec of a schema, shared by all tablets of a table
single.py           one row in plain Python: the same bytes
patching.py         an update of a few rows in plain Python
keys.py             primary keys as bytes whose order is the key's order
header.py           the fixed-size end of every value
checksum.py         the checksum that ends every row; a block is verified in one pass
fixed.py            fixed-width columns
ragged.py           variable-width columns
scalars.py          one value at a time
convert.py          rows in the user's form to one Arrow batch
python_values.py    the Python values that a column takes
altered.py          the schema after an alteration
nested.py           lists, structs and maps as bytes
nested_values.py    lists, structs and maps in the user's form to arrays
alteration.py       changes of columns; the last alteration, as every replica keeps it
partition.py        the tablet of a row, and the tablets that a predicate needs
"""
