"""How work and handles show themselves.

progress.py    the progress of long calls and commands
handles.py     the texts of handles and lists, and their tables in notebooks
"""
