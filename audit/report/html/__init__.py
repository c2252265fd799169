"""A run's report as one HTML page: sections, their order, charts, and the page around them."""
