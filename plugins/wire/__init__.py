"""Codecs of network protocols: Avro RPC, Thrift RPC and Flume's Avro event, by columns."""
