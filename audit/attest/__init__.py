"""Signed statements about runs and decisions: in-toto Statement v1 in a DSSE envelope.

`statement` and `envelope` know nothing about runs; `predicates` says what is stated, `signing` stores it.
"""
