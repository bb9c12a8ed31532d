"""What ball arithmetic cannot do."""


class NotCertified(ValueError):
    """Ball arithmetic gives no enclosure: an operation has no rule, or the largest precision leaves a choice open.

    The message names the operation. It is a class of its own, so that a program can catch it alone.
    """


class Undecided(Exception):
    """A choice that the present precision leaves open."""
