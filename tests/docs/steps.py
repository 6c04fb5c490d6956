steps = 2
