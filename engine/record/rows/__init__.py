"""Rows of logits on record: digests, laws, cells and what a level keeps."""
