"""Images as sites have them: files of any size and colour, in folders or named by an index."""
