"""Training of the bundled reference family; not imported at run time."""
