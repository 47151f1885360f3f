"""What donors did, in a few words."""

from swarm.peers.remote import RemoteExperts


def summary(experts: RemoteExperts) -> str:
    """Who computed, what went wrong, what was checked; empty when no donor was asked."""
    stats, audits = experts.stats, experts.auditor.audits
    if not stats.requests:
        return ""
    parts = [f"{stats.calls} expert calls in {stats.rounds} layers"]
    for donor, pairs in sorted(stats.by_donor.items(), key=lambda item: -item[1]):
        parts.append(f"{pairs / max(stats.calls, 1):.0%} by {donor}")
    here = stats.calls - stats.remote_calls
    if here:
        parts.append(f"{here / stats.calls:.0%} here")
    if stats.hedges:
        parts.append(f"{stats.hedges_won} of {stats.hedges} hedges won")
    if stats.failovers:
        parts.append(f"{stats.failovers} failovers")
    if audits.drawn:
        parts.append(f"{audits.drawn} audits, {audits.agreed} agreed, {audits.recomputed} recomputed here")
    sent, received = experts.transferred()
    if experts.auditor.pending:
        parts.append(f"{experts.auditor.pending} audits were not finished")
    parts.append(f"{_size(sent)} sent, {_size(received)} received")
    if stats.rounds:
        parts.append(f"{1000 * stats.wait_s / stats.rounds:.1f} ms waited a layer")
    for conviction in audits.convictions:
        parts.append(f"{conviction.donor.name} is banned: {conviction.reason}")
    return "; ".join(parts)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"
