"""Parts of `audit sweep`: ranges, interleaved timing, intervals, the choice, its tables."""
