"""What documents and models are looked at for: loss by memory length, bits along a document, attention by distance."""
