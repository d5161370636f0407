// Package soak is tests only: ledgers of real processes over real stores that are killed, cut off from power, damaged and starved of room,
// by the hundred. Each suite prints its seed and how to run it again. It owns the bad luck of machines; that of peers is tested in the
// packages that meet them.
package soak
