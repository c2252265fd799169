"""The sections of the report, one file each; `audit.report.html.registry` gives their order."""
