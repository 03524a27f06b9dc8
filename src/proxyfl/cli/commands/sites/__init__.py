"""Commands of a real federation."""
