"""Environments on a real disk, with LMDB.

disk.py           a role's directory: environments are created, found, moved and removed durably
environment.py    a writable environment: group commit by one writer, a map that grows, no trust in a failed disk
commit.py         one group of batches, one transaction, one sync; the meaning of every failure
mapping.py        the map of an environment, and pinned snapshots of it
reads.py          the loops over a transaction, and the errors of reads
gate.py           the lock between threads that read and one that exchanges the map
reader.py         another process's environment, read in place
files.py          the files of an environment: no power cut leaves half of one
identity.py       the record of an environment: owner, path, format
data_dirs.py      further disks: each may be lost without the others
stream.py         the transfer of an environment to another disk
copier.py         the two processes that walk and rebuild it
roots.py          seals for LMDB's two roots, which have no checksum
structure.py      a check of all pages of a small file before it is opened
neighbours.py     a second check for rows that damaged pages may hide
pages.py          returns mapped pages to the system
"""
