"""A scripted draft that learns, so that the law with learning is exact and instant to test."""

import hashlib

import numpy as np

from engine import verify
from engine.models.scripted import ScriptedModel
from engine.proposers.draft_model.draft_model import DraftModelProposer
from engine.proposers.draft_model.online import OnlineProposer
from engine.proposers.interface import ProposerParts
from engine.sampling.draw import draw
from tests.engine.build import draft_script, make_loop


class TableStudent:
    """After the last two tokens of a lesson, says a function of what the target said there: not the same, to be wrong.

    A draft that became the target would be accepted always, which would hide a wrong law.
    """

    def __init__(self, script, vocabulary):
        self.script, self.vocabulary = script, vocabulary
        self.learnt = {}
        self.lessons = []
        self.models = []

    def digest(self):
        found = hashlib.sha256()
        for context in sorted(self.learnt):
            found.update(repr((context, self.learnt[context].tolist())).encode())
        return found.hexdigest()

    def learn(self, lessons):
        self.lessons.append(lessons)
        for lesson in lessons:
            for place, row in zip(lesson.places, lesson.rows, strict=True):
                self.learnt[lesson.tokens[: place + 1][-2:]] = np.roll(row, 1).astype(np.float64)
        known = dict(self.learnt)
        model = ScriptedModel(lambda prefix: known.get(prefix[-2:], self.script(prefix)), self.vocabulary)
        self.models.append(model)
        return model


def learner(setup, capacity, cls=OnlineProposer):
    """An online proposer over the setup's first draft script, with a table student."""
    script, rule = draft_script(setup), verify.load(setup.protocol).facts.draft_rule
    parts = ProposerParts(setup.rows, capacity, rule, draw, setup.eos_ids, None, setup.options)
    draft = DraftModelProposer(parts, ScriptedModel(script, setup.vocabulary), 0.0)
    return cls(parts, draft, TableStudent(script, setup.vocabulary))


def learning_loop(setup, capacity=512, cls=OnlineProposer):
    return make_loop(setup, capacity=capacity, proposer=learner(setup, capacity, cls))
