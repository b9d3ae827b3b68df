// Command worker is the container of the Pods that teams trace. Until somebody connects it does
// a little of everything each five milliseconds, so that a test sees when it is traced. A
// connection to its port sends how much of everything it does, in a line, and gets a line when it
// is done. Nothing else of it makes such events.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// port is where it listens.
const port = ":7000"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket: %w", err)
	}
	l, err := net.Listen("tcp", port)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connections := make(chan net.Conn)
	go accept(l, connections)
	tick := time.NewTicker(5 * time.Millisecond)
	for {
		select {
		case <-tick.C:
			if err := everything(socket, 1); err != nil {
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
		return nil //nolint:nilerr // Whoever connected went away.
	}
	var times int
	if _, err := fmt.Sscan(line, &times); err != nil {
		return fmt.Errorf("read %q: %w", line, err)
	}
	if err := everything(socket, times); err != nil {
		return err
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

// work is the function that uprobes are put on.
//
//go:noinline
func work() {}
