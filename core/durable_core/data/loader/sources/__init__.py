"""L3. Where batches come from, in logical order: one module for each kind of data."""
