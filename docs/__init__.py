"""The pages, and the tools that write some of them."""
