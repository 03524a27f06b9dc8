"""Short programs that use the public interface. The tests run them (tests/test_examples.py)."""
