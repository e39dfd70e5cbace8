"""Try the conformance kit on other processors, systems and versions: `scripts/platforms`."""

__all__: list[str] = []
