"""A round's batch as columns, before any model gives it meaning. May import numpy and `control_plane.messages`."""
