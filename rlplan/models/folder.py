"""Names of files in a folder of a model, as the Hugging Face Hub has them."""

CONFIG_FILE = "config.json"
WEIGHT_FILES = "*.safetensors"
