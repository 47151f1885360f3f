"""A model directory whose bytes arrive on first use and are never wrong."""
