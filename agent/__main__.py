"""`python -m agent`: the same as the command `agent`, for programs that start it with their own interpreter."""

from flafka import main

if __name__ == "__main__":
    main()
