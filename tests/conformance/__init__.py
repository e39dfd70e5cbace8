"""The conformance kit: cases that every runtime of bundles must pass; see README.md in this folder."""

__all__: list[str] = []
