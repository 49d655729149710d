"""A recording: every write, sync and change of names, in one order with requests and answers.

events.py    the events of a recording
watch.py     logs the changes of this process below one directory
slots.py     replaces C functions that an extension module calls
calls.py     the replacements: each does the same and notifies the watch
lanes.py     the batches of clients
facts.py     facts that must hold after a power cut
"""
