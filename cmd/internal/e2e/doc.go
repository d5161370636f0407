// Package e2e is tests only: whole markets in one process, of real parts. Providers and renters are wired as their daemons wire them, over
// real sockets on loopback, with a real store on disk each and one private containerd; what goes wrong between strangers is done to them
// here. It owns the bad luck that needs both sides at hand; the commands have tests of their own.
package e2e
