"""The release of this package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sa_jobqueue")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"
