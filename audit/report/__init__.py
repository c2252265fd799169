"""Reports on stored runs, one file per format."""
