"""L3. The physical plane: reads, retries, queues. It may change how long things take, never what comes."""
