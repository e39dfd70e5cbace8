"""Families of recurrent models that convert from files alone: one module of equations for each."""
