"""Where revisions and pods come from. Each source is a class of `source.Source`; a new one is a folder here."""
