"""The sources of fixed pods beside the configuration itself: DNS names, and files of pods."""
