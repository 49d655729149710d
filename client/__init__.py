"""ebla: durable, replicated tables and logs that live inside a Ray cluster."""
