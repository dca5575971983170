"""The life of one request, and the revision that it is for."""
