"""The two ways in which a round can go wrong on this side, told apart because they reach differently far."""


class ModelFailed(RuntimeError):
    """The model raised. The requests of this round fail; the device goes on. The cause is chained."""


class PlanFault(RuntimeError):
    """A plan asks for what cannot be: blocks, slots or work that this device does not have.

    The planner and the device no longer agree, so nothing that follows can be trusted: the device stops.
    """
