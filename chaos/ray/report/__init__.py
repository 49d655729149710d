"""What a run on real Ray came to.

report.py     the verdict and its parts, as a value
struck.py     what became of each fault
figures.py    rates, windows without an acknowledged write, recoveries
page.py       the page
plot.py       the picture
"""
