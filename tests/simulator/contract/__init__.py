"""Tests that run on the models and on real servers, and so prove the models."""
