"""From a file to the structs of `config/model/`: a tree with line numbers, read into those structs, then checked.

    file  →  checks, schema, reference  →  …_checks  →  reader  →  key_path  →  tree, forms  →  model

Each depends only on the modules to its right. `forms` walks the types of the structs, for every module that needs their
keys; a check takes a struct and its `KeyPath`, which knows the line. A mistake is one line with its position, its cause
and its correction.
"""
