"""The part `run`: what a run is asked for, and how it computes, stores, draws and reports.

`choices` is what it is asked for. `identity` names a result by all that decides it, `compute` makes it, in a process
that one of the `executors` starts, and `store` keeps it. `runner` puts them together, and `report` shows what came of
it.
"""
