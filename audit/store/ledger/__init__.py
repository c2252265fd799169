"""The append-only log: entries, Merkle proofs, checkpoints, triggers."""
