"""L4. The one place that performs effects: on tiers, staged buffers and the clock."""
