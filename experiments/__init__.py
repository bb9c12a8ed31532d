"""One file a figure, a ledger of claims, and a run that makes and reports them: `python -m experiments`.

`figures/<topic>/<name>.py` says what is computed, drawn and claimed. Three parts serve them: `lib` states what a figure
must hold and gives plots one look; `ledger` turns numbers into verdicts and pages; `run` computes, stores, draws and
reports. Each imports only those before it, and nothing in `rc_jax` imports this package.
"""
