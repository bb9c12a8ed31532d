"""One file a figure, a ledger of claims, a runner and one report: `python -m experiments`.

`figures/<topic>/<name>.py` says what is computed, drawn and claimed. `lib` states what each figure must hold, gives its
plots one look and keeps its result; `ledger` turns numbers into verdicts; `running` makes one figure after another;
`report` writes the page. Each of them imports only those before it, and nothing in `rc_jax` imports this package.
"""
