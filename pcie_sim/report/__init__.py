"""Answers for people: tables, pictures and files, made from ``results/`` only. rich and matplotlib are imported when used."""
