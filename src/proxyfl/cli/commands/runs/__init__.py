"""Commands that run methods, and follow them."""
