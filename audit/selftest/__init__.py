"""The self-test: whether the battery catches every fault and passes clean arms."""
