steps = 2

