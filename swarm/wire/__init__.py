"""The peers' language: addresses, encryption, frames, messages, and requests over them.

Everything that parses is sans-IO; `stream` and `rpc` are the thin trio adapters that drive it.
"""
