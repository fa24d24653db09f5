"""Dialects of Java and Hadoop in a configuration: regular expressions, date patterns, charsets, class names, XML."""
