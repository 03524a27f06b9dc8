"""Commands that list what there is: methods, models, graphs, data."""
