"""A batch's timeline as one HTML file that needs nothing else: what it holds, and the page around it.

The page's own scripts and styles are in ``assets``; they are put into the file as they are.
"""
