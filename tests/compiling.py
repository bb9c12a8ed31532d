"""Options of XLA's compiler for one program; what `tests/conftest.py` sets is for all others."""

# LLVM's first level, for programs that run longer than they compile.
OPTIMISED = {"xla_backend_optimization_level": 1}
# No optimisation by LLVM, and none of its expensive passes.
NOT_OPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
