"""Features that a request can meet: an interface, and one file for each feature."""
