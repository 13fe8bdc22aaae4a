"""L3. What runs in the process that reads, a worker or not: fetch, seed, collate, say what came."""
