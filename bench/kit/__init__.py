"""What the programs beside this folder share: cases (models with inputs), ways to run them, rounds, rows, bars."""
