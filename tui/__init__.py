"""The terminal to chat in."""
