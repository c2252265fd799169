"""Anchor: the recorded rows agree with an independent pass of the target.

Claim: rows. Null: at every emitted token p equals that of the target alone after the same text, up to arithmetic.
Statistic: the total variation between p of the recorded row and p of the reference's row, both after the same
transforms, per position. Effect and bound: its mean (over positions, then requests, then prompts) and the 99.5 % upper
bound by betting; the prompts are the independent units. Fault: the mean's lower bound is above the margin, or a
position exceeds the noise of correct passes (the largest difference between baseline and anchor or control after equal
texts, a Wilks bound, times a factor; before truncation, so that no threshold makes a small difference large). At
temperature 0 also: an emitted token that the reference ranks behind another one by more than such noise. Assumes
prompts drawn independently, and that reference and candidate share files, tokenizer and transforms only. Cannot see:
how tokens were drawn from the rows, rows that decided no emitted token, or wrong files.
"""

from audit.checks.base.interface import Check, needs_anchor, needs_reference
from audit.evidence.anchor.judgement import DEFAULTS, anchored_rows, judge_rows
from audit.evidence.coverage.examined import anchored
from audit.evidence.coverage.groups import Group
from audit.evidence.records import ArmKind, Level
from audit.stats.power import bound_need

CHECK = Check(
    name="anchor",
    claim="rows",
    needs=Level.L2,
    defaults=DEFAULTS,
    run=lambda evidence, params: judge_rows(anchored_rows(evidence, params), params),
    applies=needs_anchor,
    foresee=needs_reference,
    null="at every emitted token p is what the target alone gives after that text",
    effect="total variation per token",
    plan=lambda params, _design: bound_need(params["margin"], 0.0, 1.0 - float(params["confidence"]), unit="prompts"),
    companions=(ArmKind.ANCHOR,),
    covers=frozenset({Group.DRAFTING, Group.BATCH}),
    examines=anchored,
)
