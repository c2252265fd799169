"""Model folders: formats, digests, sizes, adapters."""
