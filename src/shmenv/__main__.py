"""`python -m shmenv`."""

from shmenv.cli import main

if __name__ == "__main__":
    main()
