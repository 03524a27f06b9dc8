"""What terminals and notebooks show, whatever it is about."""
