"""Stored responses of asynchronous requests (`Prefer: respond-async`)."""
