"""KubeRay's controller over the fake server: scripted by a test, or real on simulated slices."""

from __future__ import annotations

from tests.doubles.kubernetes.kuberay.real import RealController
from tests.doubles.kubernetes.kuberay.scripted import STEPS, ScriptedController

__all__ = ["STEPS", "RealController", "ScriptedController"]
