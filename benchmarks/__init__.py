"""Figures: what ebla does, beside the physical floor and a peer measured in the same run. `make bench` writes
RESULTS.md."""
