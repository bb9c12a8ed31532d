"""The ledger: what is stated, what is measured, and a verdict computed from the two (`experiments.ledger.claims`)."""

from experiments.ledger.claims import (
    OWN,
    Claim,
    Measured,
    Row,
    RowType,
    interval_text,
    judged,
    law,
    measured_text,
    published,
    who,
)
from experiments.ledger.decision import Verdict
from experiments.ledger.intervals import Interval, at_least, at_most, near, printed, show

__all__ = [
    "OWN",
    "Claim",
    "Interval",
    "Measured",
    "Row",
    "RowType",
    "Verdict",
    "at_least",
    "at_most",
    "interval_text",
    "judged",
    "law",
    "measured_text",
    "near",
    "printed",
    "published",
    "show",
    "who",
]
