-- Keeps what runs as it is: nothing is loaded, updated or unloaded until it is resumed.
obj.spec.suspend = true
return obj
