"""Wire formats of the protocols served, both directions; values in, values out, no I/O."""
