"""The asyncio shell around the scheduler: takes what arrived, plans while the device has room, publishes.

Start at `round_loop.py`: it reads as the schedule of a round. Each line there is one component's single entry, and
what it does is that component's file. May import `control_plane.rounds` and below; the device is only known as
`device_port.DevicePort`.
"""
