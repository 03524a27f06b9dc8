"""Per-example gradients: the proof that examples stay apart, the three ways to compute them, and
their clipped sum."""
