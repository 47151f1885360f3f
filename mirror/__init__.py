"""A model directory whose bytes arrive on first use, are checked against the operator's signature, and stay.

`cas` keeps chunks, `tree` is the directory a manifest describes, `plan` decides from whom to fetch, `fetch`
does it, `source` hands the bytes to an engine's thread, `fuse` to any other program, `http` brings them from
web servers.
"""
