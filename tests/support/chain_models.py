"""Write the packaged chains: python -m tests.support.chain_models suites/models."""

import sys
from pathlib import Path

from audit.selftest.chains import SEED, tables, write_chain


def write_all(out):
    given = tables(SEED)
    return [write_chain(out / name, table) for name, table in (("chain", given.target), ("chain_draft", given.draft))]


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
