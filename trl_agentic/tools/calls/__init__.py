"""How the runtime runs calls: checks, queues, threads, deadlines."""
