"""Skills: instructions in a folder, with the files and scripts that belong to them."""
