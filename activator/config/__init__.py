"""From a file to the structs of `config/model/`: a tree with line numbers, read by those types, then checked.

    file  →  checks, schema  →  …_checks  →  reader  →  tree

Each knows only what stands to its right. A mistake is one line that says what is wrong, where, and what to do.
"""
