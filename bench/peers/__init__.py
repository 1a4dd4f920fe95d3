"""One module for each library that compare.py measures, and for the limit; each runs in its library's environment."""
