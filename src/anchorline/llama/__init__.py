"""The only package that imports llama_cpp.

``interface`` holds the types the rest of the program speaks; it imports no llama_cpp, so the
pure parts and the fake runtime of the tests can use it.
"""
