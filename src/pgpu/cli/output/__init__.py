"""How results and errors look: tables for people, JSON documents for programs, and the streams that they go to."""
