"""Whole-slide images: tissue, contours, patches, and a store of them."""
