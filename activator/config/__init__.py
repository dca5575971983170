"""From a file to the structs of `config/model/`: a tree with line numbers, read by those types, then checked.

    file  →  checks, schema  →  …_checks  →  reader  →  tree

Each depends only on the modules to its right. A mistake is one line with its place, its cause and its correction.
"""
