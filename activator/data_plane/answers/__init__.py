"""Responses that are stored for clients who do not wait (`Prefer: respond-async`)."""
