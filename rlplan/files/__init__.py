"""Reading files strictly and writing them whole, with the types that both stand on.

It knows no type of a job or plan by name, and no third party but the decoding library and YAML.
"""
