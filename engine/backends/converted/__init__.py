"""What backends share that convert a suite's models and run them in a process of their own."""
