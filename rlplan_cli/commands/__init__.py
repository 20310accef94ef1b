"""Commands, one file each: `command` with `EXAMPLE`, or a group `app`; the name is the file's name."""
