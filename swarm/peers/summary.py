"""What donors did, in a few words."""

from swarm.peers.audit import Audits
from swarm.peers.remote import RemoteExperts
from swarm.units import format_bytes, plural


def summary(experts: RemoteExperts) -> str:
    """Who computed, what went wrong, what was checked; empty when no donor was asked."""
    stats, audits = experts.stats, experts.auditor.audits
    if not stats.requests:
        return ""
    steps = plural(stats.rounds, "step")  # of one layer each, so that a token takes many
    parts = [f"{plural(stats.calls, 'expert call')} in {steps}"]
    for donor, pairs in sorted(stats.by_donor.items(), key=lambda item: -item[1]):
        parts.append(f"{pairs / max(stats.calls, 1):.0%} by {donor}")
    here = stats.calls - stats.remote_calls
    if here:
        parts.append(f"{here / stats.calls:.0%} here")
    if stats.hedges:
        parts.append(f"{stats.hedges_won} of {stats.hedges} hedges won")
    if stats.failovers:
        parts.append(plural(stats.failovers, "failover"))
    if audits.drawn:
        parts.append(_audited(audits, experts.auditor.pending))
    sent, received = experts.transferred()
    parts.append(f"{format_bytes(sent)} sent, {format_bytes(received)} received")
    if stats.rounds:
        parts.append(f"{1000 * stats.wait_s / stats.rounds:.1f} ms waited a step")
    for conviction in audits.convictions:
        parts.append(f"{conviction.donor.name} is banned: {conviction.reason}")
    return "; ".join(parts)


def _audited(audits: Audits, pending: int) -> str:
    found = [
        (audits.agreed, "agreed"),
        (audits.recomputed, "recomputed here"),
        (audits.unchecked, "could not be checked"),
        (pending, "not finished"),
    ]
    told = ", ".join(f"{count:,} {what}" for count, what in found if count)
    return f"{plural(audits.drawn, 'answer')} audited" + (f": {told}" if told else "")
