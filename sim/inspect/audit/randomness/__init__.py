"""What should look random: tests of strings, of masked words and of polynomials, and guesses."""
