"""Where the addresses of fixed pods come from, beside the configuration itself: names, and files of pods."""
