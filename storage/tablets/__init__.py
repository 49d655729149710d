"""The rows of one replica.

tablet_store.py       memtables over one environment, flushed with answers, position and alteration
row_tree.py           rows on disk as items of a tree
run_tree.py           rows on disk as sorted runs of columns
positions.py          the record of the position that the rows on disk reflect
memtable.py           applied rows that are not yet flushed
columns_memtable.py   those of a columnar tablet, with batches as they came
results.py            the answers of writes, so that a retry gets the first one
scrub.py              a walk over all rows, to find damage
local_reader.py       scans of a replica's rows from another process of the host
transfer.py           a chunk of a copied tablet, with its digest
quarantine.py         the data of deleted and replaced replicas
restore.py            writes data in quarantine to Parquet files
"""
