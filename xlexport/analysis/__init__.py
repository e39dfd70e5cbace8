"""Analyses of documents and models: loss by memory length, bits along a document, attention by distance."""
