"""Commands about epsilon: what it costs, what is left, whether it holds."""
