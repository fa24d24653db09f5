"""Components to start from: `agent new` makes others of them, `agent template` prints one. Each passes its test."""
