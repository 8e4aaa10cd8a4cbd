"""A child process for work that must not hurt whoever asks for it: it can be killed, no thread can.

Messages of one codec, in frames on the child's stdin and stdout. The first one sets the child up.
"""
