"""Adapters to agent frameworks: LangChain, FastMCP. They translate, and decide nothing."""


def missing(module: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for an adapter whose framework is not installed: which extra brings it."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs the package {package!r}, which the extra {extra!r} brings: pip install 'holdfast[{extra}]'",
        name=error.name,
    )
