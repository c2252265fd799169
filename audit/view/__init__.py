"""`audit view`: the pages of a store on loopback, read-only, without a script."""
