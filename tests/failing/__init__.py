"""Agent of which one operation of the operating system fails: open, write, fork or clone, and mmap."""
