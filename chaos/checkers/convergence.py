"""After the faults have ended, all replicas of a tablet hold the same rows."""

from __future__ import annotations

from collections.abc import Mapping

from ebla.chaos.checkers.verdict import Verdict, joined, nothing


def check_convergence(digests: Mapping[str, str]) -> Verdict:
    """`digests` maps each replica's name to the digest of what it holds, all at the same position of the log."""
    if len(digests) < 2:
        return nothing(f"{len(digests)} digests cannot be compared; at least two replicas must be asked")
    holders: dict[str, list[str]] = {}
    for replica in sorted(digests):
        holders.setdefault(digests[replica], []).append(replica)
    if len(holders) == 1:
        return Verdict(True, judged=len(digests))
    groups = sorted(holders.items(), key=lambda each: -len(each[1]))
    told = "; ".join(f"{joined(replicas)} hold {digest}" for digest, replicas in groups)
    return Verdict(False, f"the replicas differ: {told}", judged=len(digests))
