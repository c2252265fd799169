"""Kubernetes admission by the gate's decisions."""
