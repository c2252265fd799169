"""`python -m specaudit`: the command by the name of the distribution, whose wheel has this file as `specaudit.py`."""

from audit.cli import main

if __name__ == "__main__":
    main(prog_name="specaudit")
