"""Rego modules beside a policy: they see the facts of a decision as JSON and can only make it stricter."""
