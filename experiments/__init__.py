"""One file a figure, a runner, a ledger of claims and one report: `python -m experiments`.

`figures/<name>.py` says what is computed, drawn and claimed; `figure` finds those files and states what each must hold;
`ledger` turns numbers into verdicts; `style` gives every plot one look, light and dark; `store` keeps results;
`runner` makes one figure after another; `report` writes the page. Nothing in `rc_jax` imports this package.
"""
