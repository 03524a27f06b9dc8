"""Architectures: the paper's, a few more, and the user's own as ``package.module:factory``."""

from proxyfl.models.architectures import set_prior
from proxyfl.models.registry import MODELS, Architecture, build, parameter_count

__all__ = ["MODELS", "Architecture", "build", "parameter_count", "set_prior"]
