"""A recording: every write, sync and change of names, in one order with what was said.

events.py    what a recording is made of
watch.py     logs what this process does below one directory
slots.py     puts functions in the place of those that an extension module calls
calls.py     those functions: each does the same and notifies the watch
lanes.py     what clients write
facts.py     what must be true after a power cut
"""
