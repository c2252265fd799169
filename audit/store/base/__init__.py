"""Values, keys, connections and locks of the store: what every other room of it builds on."""
