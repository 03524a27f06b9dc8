"""Frozen features: images embedded once by something that no private record has shaped."""
