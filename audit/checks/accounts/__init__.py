"""Second accounts: the default checks of an arm, and the check that every recorded quantity was looked at twice."""
