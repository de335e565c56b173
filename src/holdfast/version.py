"""The version of Holdfast, in its one place: pyproject.toml reads it from here, too."""

__version__ = "0.1.0"
