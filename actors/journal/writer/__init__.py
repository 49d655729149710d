"""The writer's and the reader's side of a journal.

writer.py      edits in, one after the other; each is acknowledged when a majority has it on disk
session.py     one epoch of one writer: every step at a majority
recovery.py    how a new writer decides what the last one wrote
channel.py     the writer's bounded queue to one node
holder.py      the lease at the nodes, as its holder sees it
reader.py      reads committed edits without disturbing the writer
measures.py    the figures of the writer's channels
"""
