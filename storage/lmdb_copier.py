"""What reads an environment for a stream of it (lmdb_stream.py): LMDB's compacting copy to standard output, in front of it the
number of the commit that it shows, 8 bytes.

A process of its own, started by the path of this file, so that nothing but LMDB is loaded.
"""

import sys

NUMBER_BYTES = 8


def main(packages: str, directory: str, databases_max: str) -> None:
    sys.path.append(packages)
    import lmdb

    environment = lmdb.open(directory, readonly=True, create=False, max_dbs=int(databases_max))
    with environment.begin() as transaction:
        sys.stdout.buffer.write(transaction.id().to_bytes(NUMBER_BYTES, "little"))
        sys.stdout.buffer.flush()
        environment.copyfd(sys.stdout.fileno(), compact=True, txn=transaction)


if __name__ == "__main__":
    main(*sys.argv[1:])
