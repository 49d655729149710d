"""How work, handles and results show themselves.

progress.py    the progress of long calls and commands
steps.py       the steps of a long command
values.py      values of columns as text
handles.py     the texts of handles, results and lists, and their tables in notebooks
"""
