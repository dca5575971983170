"""The tables of all revisions in one data plane: effects change them, checks compare them, a new one replaces one."""
