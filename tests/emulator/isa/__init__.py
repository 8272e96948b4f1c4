"""Instruction tables: every row names an instruction, its operands and an independent numpy model of it."""
