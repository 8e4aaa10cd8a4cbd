"""No property test is judged by the clock: a machine may stand still in the midst of an example."""

from hypothesis import HealthCheck, settings

settings.register_profile("baton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("baton")
