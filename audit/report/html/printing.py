"""Prints a page to PDF by an installed Chromium or Chrome. The page itself fetches nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from audit.errors import UserError

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
"""Commands that are tried, in this order."""
TIMEOUT_S: Final = 120


def pdf_of(page: str) -> bytes:
    """The page as PDF.

    Raises:
        UserError: no browser is installed, or it does not print.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise UserError(
            "--pdf needs Chromium or Chrome, and none is in PATH; install one, or print --html from a browser"
        )
    with tempfile.TemporaryDirectory(prefix="specaudit-") as folder:
        source, printed = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, "utf-8", "backslashreplace")
        reason = _run([browser, *_options(folder), f"--print-to-pdf={printed}", source.as_uri()])
        if not printed.is_file():
            raise UserError(f"{browser} printed nothing{reason}; print --html from a browser")
        return printed.read_bytes()


def _options(folder: str) -> list[str]:
    # a browser run by root has no sandbox of its own; the page has no script
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    return ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile", *root]


def _run(command: list[str]) -> str:
    """Run the browser; the reason if it failed, as the end of a sentence."""
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f" in {TIMEOUT_S} s"
    except OSError as error:
        return f" ({error.strerror})"
    return "" if ended.returncode == 0 else f" (exit code {ended.returncode})"
