"""The charges to a client's data, by one study and by all of them together."""
