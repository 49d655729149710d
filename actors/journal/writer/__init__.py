"""The writer's and the reader's side of a journal.

writer.py      takes edits in order; acknowledges each when a majority has it on disk
session.py     the steps of one writer, each at a majority
recovery.py    decides for a new writer which edits of the last writer stay
channel.py     the writer's bounded queue to one node
holder.py      the holder's side of the lease at the nodes
reader.py      reads committed edits without disturbing the writer
measures.py    the figures of the writer's channels
"""
