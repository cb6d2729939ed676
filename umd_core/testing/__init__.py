"""For those who test: the conformance kit, the reference, and Hypothesis strategies (extra `testing`).

from umd_core.testing.conformance import DeviceTests

class TestMine(DeviceTests):
    backend = "mine"
"""
