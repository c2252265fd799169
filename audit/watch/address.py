"""The address of a server's counters, from any address by which people name the server."""


def counters_address(url: str) -> str:
    """The address of `/metrics`; `url` is the server's own, that of its API (`/v1`), or the one of the counters."""
    bare = url.rstrip("/")
    return bare if bare.endswith("/metrics") else f"{bare.removesuffix('/v1')}/metrics"
