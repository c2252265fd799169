"""The tutorial's commands run on the real model and print what it shows."""

import shutil

import pytest

from tests.attach.transcripts import ROOT, changes, rewritten

from .smollm2 import CACHE, CHATS, copy_model

pytestmark = pytest.mark.real
PAGE = ROOT / "docs" / "how-to" / "first-audit.md"


def test_the_page_is_what_the_commands_print(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    shutil.copyfile(CHATS, tmp_path / "chats.jsonl")
    copy_model(tmp_path / "smollm2.gguf")
    text = PAGE.read_text(encoding="utf-8")
    fresh = rewritten(text, tmp_path)
    # to take the new page over
    (tmp_path / PAGE.name).write_text(fresh, encoding="utf-8")
    assert changes(text, fresh) == [], tmp_path / PAGE.name
