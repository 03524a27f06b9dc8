"""Stores of images or features: sharded, checksummed, read row by row."""
