"""The owner of a role's directory, and small records in it.

instance.py    the instance file, the lock held for life, and the mark of a directory that was given up
records.py     small typed records with a checksum bound to their key
"""
