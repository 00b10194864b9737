"""`python -m rlvr.job`: see rlvr/job/process.py."""

from rlvr.job.process import main

if __name__ == "__main__":
    main()
