"""Exhaustive exploration of small worlds: the real fold, append and claims, every interleaving."""
