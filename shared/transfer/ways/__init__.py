"""The ways by which blocks go from worker to worker: where readers connect, how a pull dials."""
