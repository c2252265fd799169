"""Grammars: masks on every row of a request, from a library behind one protocol.

A mask is a function of the generated tokens alone (`prefix.PrefixConstraint`), so a rejected draft leaves no trace.
"""
