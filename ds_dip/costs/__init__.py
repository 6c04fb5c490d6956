"""What work costs before it runs: seconds and bytes of chunks and transfers, from rates or from measurements.

Predictions come from a roofline over the layers' operations; corrections fitted from measured stages lie on top.
"""
