// Command job is the program in the image of the tests: each verb shows one thing that a job can do, or tries to. Its standard library only
// body is built static, so that an image needs nothing else.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: job VERB [ARGUMENT...]")
		os.Exit(2)
	}
	arg := ""
	if len(os.Args) > 2 {
		arg = os.Args[2]
	}
	switch os.Args[1] {
	case "exit":
		os.Exit(number(arg))
	case "say": // to standard output and to standard error
		fmt.Println("out " + arg)
		fmt.Fprintln(os.Stderr, "err "+arg)
	case "lines": // arg lines
		for i := range number(arg) {
			fmt.Println("line", i)
		}
	case "count": // a line each tenth of a second until a file is there
		for i := 0; ; i++ {
			if _, err := os.Stat(arg); err == nil {
				os.Exit(7)
			}
			fmt.Println("line", i)
			time.Sleep(100 * time.Millisecond)
		}
	case "trap": // ends in its own way on SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("asked to stop")
		os.Exit(3)
	case "crash":
		signal.Reset()
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number(arg)))
		select {}
	case "orphan": // leaves a grandchild behind
		must(exec.Command("/bin/job", "spawn").Run())
	case "spawn":
		must(exec.Command("/bin/job", "sleep").Start())
	case "sleep":
		fmt.Println("ready")
		for {
			time.Sleep(time.Hour)
		}
	case "spin":
		for {
			_ = os.Args
		}
	case "eat": // arg MiB of memory, touched
		var held [][]byte
		for range number(arg) {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			held = append(held, b)
		}
		fmt.Println("ate", len(held))
	case "fork": // as many as the limit lets it
		n := 0
		for ; n < number(arg); n++ {
			if err := exec.Command("/bin/job", "sleep").Start(); err != nil {
				fmt.Println("stopped by", err)
				break
			}
		}
		fmt.Println("forked", n)
	case "show":
		show()
	case "write": // every path it is given
		for _, p := range os.Args[2:] {
			err := os.WriteFile(p, []byte("x"), 0o644)
			fmt.Println(p, err == nil)
		}
	case "fill": // files in a folder until it is full
		for i := 0; ; i++ {
			if err := os.WriteFile(filepath.Join(arg, strconv.Itoa(i)), nil, 0o600); err != nil {
				fmt.Println("stopped at", i, err)
				return
			}
		}
	default:
		fmt.Fprintln(os.Stderr, "unknown verb", os.Args[1])
		os.Exit(2)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// show prints what the sandbox lets it see, a "key value" a line.
func show() {
	b, err := os.ReadFile("/proc/self/status")
	must(err)
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "CapEff", "CapBnd", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Uid", "Groups":
			fmt.Println(key, strings.Join(strings.Fields(value), ","))
		}
	}
	ifs, err := net.Interfaces()
	must(err)
	for _, i := range ifs {
		if i.Flags&net.FlagUp != 0 {
			fmt.Println("interface", i.Name)
		}
	}
	for _, addr := range []string{"1.1.1.1:53", "127.0.0.1:1"} {
		_, err = net.DialTimeout("tcp", addr, time.Second)
		fmt.Println("dial", addr, err)
	}
	host, err := os.Hostname()
	must(err)
	fmt.Println("hostname", host)
	fmt.Println("pid", os.Getpid())
	dir, err := os.Getwd()
	must(err)
	fmt.Println("cwd", dir)
	for _, kv := range os.Environ() {
		fmt.Println("env", kv)
	}
	_, err = os.ReadDir("/proc/kcore")
	fmt.Println("kcore", err)
	fmt.Println("mount", syscall.Mount("tmpfs", "/scratch", "tmpfs", 0, ""))
	fmt.Println("mknod", syscall.Mknod("/scratch/sda", syscall.S_IFBLK|0o600, 8<<8))
	fmt.Println("unshare", syscall.Unshare(syscall.CLONE_NEWUSER))
	fmt.Println("chroot", syscall.Chroot("/in"))
	devs, err := os.ReadDir("/dev")
	must(err)
	for _, d := range devs {
		fmt.Println("dev", d.Name())
	}
}
