"""Where two texts part, as a finding prints it."""

from audit.evidence.divergence.triage import parting


def test_both_continuations_follow_the_end_of_what_both_wrote():
    found = parting("Once upon a time there was a dog who slept all day", "Once upon a time there was a cat")
    assert found == "after 'upon a time there was a ' it wrote 'dog who slept al', the baseline 'cat'"


def test_a_text_that_ends_first_and_equal_texts():
    assert parting("Yes", "Yes, sir") == "after 'Yes' it wrote nothing, the baseline ', sir'"
    assert parting("Yes", "Yes") == ""


def test_control_characters_and_direction_marks_are_escaped():
    found = parting("a\x1b[31m", "a\u202eb")
    assert found == r"after 'a' it wrote '\x1b[31m', the baseline '\u202eb'"
