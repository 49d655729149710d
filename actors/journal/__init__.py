"""The quorum journal: an ordered log of edits on an odd number of nodes, one writer at a time, fenced by epochs.

Start with rules.py, what a node accepts, and recovery.py, how a new writer decides what the last one wrote. journal.py
makes the decisions durable, node.py serves them; channel.py and writer.py are the writer's side, reader.py everybody
else's, sync.py what nodes do for each other, edit_log.py the log that a master plugs in.
"""
