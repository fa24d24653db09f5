"""The same tests on the models and on the real servers, so that the models are true."""
