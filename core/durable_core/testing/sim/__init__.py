"""The deterministic simulator: real protocol programs, one thread, one seed = one schedule."""
