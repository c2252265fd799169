"""`python -m specaudit`: the command by the distribution's name; the wheel has this as `specaudit/__main__.py`."""

from audit.cli import main

if __name__ == "__main__":
    main(prog_name="specaudit")
