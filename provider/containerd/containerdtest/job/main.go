// Command job is the program in the image of the tests: each verb shows one thing that a job can do, or tries to. It is built
// static of the standard library, so that an image needs nothing else.
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
	verbs := map[string]func(args []string){
		"exit":   func(a []string) { os.Exit(number(a[0])) },
		"say":    say,
		"lines":  lines,
		"count":  count,
		"trap":   trap,
		"deaf":   deaf,
		"weird":  weird,
		"work":   working,
		"ctrl-c": ctrlC,
		"copy":   copyFile,
		"crash":  crash,
		"orphan": func([]string) { must(exec.Command("/bin/job", "spawn").Run()) }, // leaves a grandchild behind
		"spawn":  func([]string) { must(exec.Command("/bin/job", "sleep").Start()) },
		"sleep":  sleep,
		"eat":    eat,
		"fork":   fork,
		"show":   func([]string) { show() },
		"write":  write,
		"fill":   fill,
		"reach":  reaching,
	}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: job VERB [ARGUMENT...]")
		os.Exit(2)
	}
	verbs[os.Args[1]](os.Args[2:])
}

// deaf does not end on SIGTERM.
func deaf([]string) {
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("ready")
	sleep(nil)
}

// weird makes what is no result in a folder, besides one that nobody may read.
func weird(a []string) {
	at := func(name string) string { return filepath.Join(a[0], name) }
	must(syscall.Mkfifo(at("pipe"), 0o666))
	_, err := net.Listen("unix", at("socket"))
	must(err)
	must(os.Symlink("/etc/passwd", at("out")))
	must(os.Symlink("../../..", at("up")))
	must(os.Mkdir(at("deep"), 0o700))
	must(os.WriteFile(at("deep/secret"), []byte("result"), 0))
	must(os.Chmod(at("deep"), 0))
}

// say writes to standard output and to standard error.
func say(a []string) {
	fmt.Println("out " + a[0])
	fmt.Fprintln(os.Stderr, "err "+a[0])
}

func lines(a []string) {
	for i := range number(a[0]) {
		fmt.Println("line", i)
	}
}

// count writes a line each tenth of a second until a file is there.
func count(a []string) {
	for i := 0; ; i++ {
		if _, err := os.Stat(a[0]); err == nil {
			os.Exit(7)
		}
		fmt.Println("line", i)
		time.Sleep(100 * time.Millisecond)
	}
}

// trap ends in its own way on SIGTERM.
func trap([]string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	fmt.Println("ready")
	<-c
	fmt.Println("asked to stop")
	os.Exit(3)
}

// working writes a first result, then a line each tenth of a second, then the last result.
func working(a []string) {
	must(os.WriteFile(a[1]+".begun", []byte("begun\n"), 0o644))
	for i := range number(a[0]) {
		fmt.Println("line", i)
		time.Sleep(100 * time.Millisecond)
	}
	must(os.WriteFile(a[1], []byte("done\n"), 0o644))
}

// ctrlC ends at the given number of SIGINTs.
func ctrlC(a []string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	fmt.Println("ready")
	for i := range number(a[0]) {
		<-c
		fmt.Println("interrupt", i+1)
	}
	os.Exit(130)
}

// copyFile copies a file, says so with its environment, and works for a while.
func copyFile(a []string) {
	b, err := os.ReadFile(a[0])
	must(err)
	must(os.WriteFile(a[1], b, 0o644))
	fmt.Println("copied", a[0], strings.Join(os.Environ(), " "))
	d, err := time.ParseDuration(a[2])
	must(err)
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

func crash(a []string) {
	signal.Reset()
	_ = syscall.Kill(os.Getpid(), syscall.Signal(number(a[0])))
	select {}
}

func sleep([]string) {
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

// eat takes MiB of memory and touches them.
func eat(a []string) {
	var held [][]byte
	for range number(a[0]) {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println("ate", len(held))
}

// fork starts processes until there are enough or it is stopped.
func fork(a []string) {
	n := 0
	for ; n < number(a[0]); n++ {
		if err := exec.Command("/bin/job", "sleep").Start(); err != nil {
			fmt.Println("stopped by", err)
			break
		}
	}
	fmt.Println("forked", n)
}

// write tries to write files.
func write(a []string) {
	for _, p := range a {
		err := os.WriteFile(p, []byte("x"), 0o644)
		fmt.Println(p, err == nil)
	}
}

// fill makes files in a folder until it is full.
func fill(a []string) {
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(a[0], strconv.Itoa(i)), nil, 0o600); err != nil {
			fmt.Println("stopped at", i, err)
			return
		}
	}
}

// reaching tries to get out of its namespace, each way by itself: a target as network/host:port; or a word for what is no connection.
func reaching(a []string) {
	others := map[string]func() error{
		"raw":      func() error { return socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP) },
		"packet":   func() error { return socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0x300) }, // ETH_P_ALL in network order
		"netadmin": func() error { return syscall.Sethostname([]byte("x")) },
		"tun": func() error {
			f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
			if err == nil {
				f.Close()
			}
			return err
		},
	}
	for _, what := range a {
		if other := others[what]; other != nil {
			if err := other(); err != nil {
				fmt.Println(what, err)
			} else {
				fmt.Println(what, "hello: it may")
			}
			continue
		}
		network, to, _ := strings.Cut(what, "/")
		fmt.Println(what, hear(net.DialTimeout(network, to, 5*time.Second)))
	}
}

func socket(family, kind, protocol int) error {
	fd, err := syscall.Socket(family, kind, protocol)
	if err == nil {
		err = syscall.Close(fd)
	}
	return err
}

// hear is what answers, or why nothing does.
func hear(c net.Conn, err error) string {
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, isUDP := c.(*net.UDPConn); isUDP {
		_, _ = c.Write([]byte("hi")) // reading tells
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[:n]))
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
