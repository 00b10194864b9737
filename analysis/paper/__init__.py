"""The tables that papers print, as data of this project, and runs of ours beside them."""
