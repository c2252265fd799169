"""What several test files share: stand-ins, builders and ways to run cases. No tests."""
