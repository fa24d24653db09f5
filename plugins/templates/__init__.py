"""Components to start from: what `agent template` prints. Each is whole, and passes the conformance kit."""
