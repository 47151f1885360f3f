"""Whom to believe: identities, operators' keys, signed manifests, numeric profiles, receipts, invites."""
