"""A worker's two processes: `engine` computes, `io` talks; joined by one channel."""
