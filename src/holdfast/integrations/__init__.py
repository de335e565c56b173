"""Adapters to agent frameworks: LangChain, FastMCP. They convert types and contain no logic of their own."""


def missing(module: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for an adapter whose framework is not installed, naming the extra to install."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs the package {package!r}, installed by the extra {extra!r}: pip install 'holdfast[{extra}]'",
        name=error.name,
    )
