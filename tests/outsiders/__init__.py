"""What strangers can do to the program from outside: files, messages and command lines made to break it."""
