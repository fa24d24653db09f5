"""The long version of tests/system/test_faults.py."""
