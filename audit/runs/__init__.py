"""Running a suite: arms, rounds, interim looks, judging, and the size of a run."""
