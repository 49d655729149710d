"""Faults on purpose: deployments in virtual time, power cuts, and real Ray clusters (docs/testing.md).

plans.py         plans of faults, as data
scenarios/       how large a deployment is, what its clients do, what goes wrong
workloads/       what clients and operators do
history.py       what clients requested, and the answers
checkers/        judge a history
simulation/      a deployment in virtual time, and the faults on it
invariants/      what must hold at every moment of a simulated run
runs.py          one simulated run: two acts and a verdict
repaired.py      ledgers are whole again after all faults
growing.py       an operator lets a journal grow from one node to three
story.py         what happened in a run, for people
soak.py          many runs on all cores
defects/         defects that the simulation must find
powercut/        power cuts replayed from what storage wrote; damage at rest
ray/             the same plans on a real Ray cluster
faults.py        faults on real processes and nodes of this machine
export.py        histories for other checkers
soak_page.py     the page of a soak
pages.py         the template and the tables of all pages
"""
