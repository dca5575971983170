"""The sources of revisions and pods. Each is a class of `source.Source`, and a new one is a folder here."""
