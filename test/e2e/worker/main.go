// Command worker is the container of the Pods that teams trace. Until somebody connects it does
// a little of everything each five milliseconds, so that a test sees when it is traced. A
// connection to its port sends how much of everything it does, in a line, and gets a line when it
// is done. Nothing else of it makes such events.
//
// With the argument once it does everything once, at once, and ends. The binaries in /probes pass a
// USDT probe as often as their names say.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// port is where it listens.
const port = ":7000"

func main() {
	if slices.Equal(os.Args[1:], []string{"once"}) {
		os.Exit(once())
	}
	fmt.Fprintln(os.Stderr, "worker:", run())
	os.Exit(1)
}

// fewest is how often the binary passes its probe that passes it least.
const fewest = 2

// once does everything once.
func once() int {
	socket, err := open()
	if err == nil {
		err = everything(socket, 1)
	}
	if err == nil {
		err = probes(fewest)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func open() (int, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", err)
	}
	return socket, nil
}

// run works until something fails, and returns why.
func run() error {
	socket, err := open()
	if err != nil {
		return err
	}
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", port)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connections := make(chan net.Conn)
	go accept(l, connections)
	tick := time.NewTicker(5 * time.Millisecond)
	for ticks := 0; ; {
		select {
		case <-tick.C:
			err := everything(socket, 1)
			// Another process takes more of the machine.
			if ticks++; err == nil && ticks%20 == 0 {
				err = probes(fewest)
			}
			if err != nil {
				return err
			}
		case c := <-connections:
			tick.Stop()
			if err := serve(socket, c); err != nil {
				return err
			}
		}
	}
}

func accept(l net.Listener, to chan<- net.Conn) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		to <- c
	}
}

// serve does as much as a connection asks for.
func serve(socket int, c net.Conn) error {
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		// Whoever connected went away.
		return nil
	}
	var times int
	if _, err := fmt.Sscan(line, &times); err != nil {
		return fmt.Errorf("read %q: %w", line, err)
	}
	if err := everything(socket, times); err != nil {
		return err
	}
	if times > 0 {
		if err := probes(times); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintln(c, "done")
	return nil
}

// everything calls a function, makes a system call and connects, so many times.
func everything(socket, times int) error {
	for range times {
		work()
		if _, err := unix.Getpgid(0); err != nil {
			return fmt.Errorf("get process group: %w", err)
		}
		if err := unix.Connect(socket, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	return nil
}

// probes passes the USDT probe so many times.
func probes(times int) error {
	if err := exec.CommandContext(context.Background(), fmt.Sprint("/probes/", times)).Run(); err != nil {
		return fmt.Errorf("pass the probe %d times: %w", times, err)
	}
	return nil
}

// work is the function that uprobes are put on.
//
//go:noinline
func work() {}
