"""Who owns a role's directory, and small records in it.

instance.py    the instance file, the lock held for life, and the mark of a directory that was given up
space.py       free space on a file system, and files that are allocated before they are mapped
records.py     small typed records with a checksum bound to their key
"""
