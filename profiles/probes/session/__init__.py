"""A session: all probes on this machine into one profile, which an interrupted session resumes."""

from profiles.probes.session.profiling import Progress, profile_machine

__all__ = ["Progress", "profile_machine"]
