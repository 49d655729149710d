"""The frame of every command.

commands.py    common options, registration, and how a command fails
options.py     arguments and options that several commands share
ui.py          results on standard output, everything else on standard error, or one JSON document
connection.py  one connection for as long as a command runs
problems.py    messages and exit statuses of failures
render.py      tables on a terminal
views.py       verdicts as tables
types.py       types of columns in text form
values.py      values in text form
completion.py  completion in shells: installation, and names of tables and logs
losing.py      the confirmation of a loss
amounts.py     times and sizes in text form
where.py       conditions in text form
places.py      what is remembered of this user's deployments
quiet.py       keeps Ray off the console
"""
