"""TLS of clients and servers, and their keystores."""
