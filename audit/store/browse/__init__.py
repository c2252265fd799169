"""Lists of a store for people who page through it: runs, requests and trends, a page per query."""
