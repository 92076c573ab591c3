"""Acting on a machine: start, read, signal, run. It knows no engine and decides nothing."""
