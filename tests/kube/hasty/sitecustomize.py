"""Makes an autoscaler hasty, for tests that cannot wait minutes. Python imports it at its start."""

from services.autoscaler import disagreement
from services.autoscaler.planning import policy

HASTY_S = 5.0

policy.HOLD_S = HASTY_S
disagreement.STRANGERS_HOLD_S = HASTY_S
