"""`python -m audit`: the command, where its script is not on the path."""

from audit.cli import main

if __name__ == "__main__":
    main(prog_name="audit")
