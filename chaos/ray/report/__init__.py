"""The report of a run on real Ray.

report.py      the verdict and its parts, as a value
injection.py   the outcome of each fault
figures.py     rates, windows without an acknowledged write, recoveries
page.py        the page
plot.py        the picture
"""
