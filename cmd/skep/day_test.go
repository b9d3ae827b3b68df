package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/await"
)

// untilShown runs skep until its output matches: until PATTERN ARGS...
func untilShown(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(await.Until(ctx, time.Second, func() error {
		if err := ts.Exec("skep", args[1:]...); err != nil {
			return fmt.Errorf("skep %s: %w", strings.Join(args[1:], " "), err)
		}
		if !want.MatchString(ts.ReadFile("stdout")) {
			return errors.New("no match for " + args[0])
		}
		return nil
	}))
}

// sendPackets sends UDP packets to a port, which leave by an interface: packets IFACE PORT N.
func sendPackets(ts *testscript.TestScript, _ bool, args []string) {
	iface, err := net.InterfaceByName(args[0])
	ts.Check(err)
	port, err := strconv.ParseUint(args[1], 10, 16)
	ts.Check(err)
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	ts.Check(err)
	defer unix.Close(fd)
	frame := make([]byte, 64)
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x08\x00\x45")
	frame[23] = unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(frame[36:], uint16(port))
	for range n {
		ts.Check(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: iface.Index, Halen: 6}))
	}
}

// passing is what differs between two runs of a script: ids, ages, digests, the folder of the script.
var passing = regexp.MustCompile(`\b(program|link|id|count-[a-z]+) [0-9]+\b|\b[0-9a-f]{12,64}\b|\bfor [0-9]+[smh]\b`)

// heading is the first line of a table.
var heading = regexp.MustCompile(`^[#A-Z][ A-Z/%]*$`)

// withoutPassing writes the last output to a file, without what differs between two runs: plain FILE.
func withoutPassing(ts *testscript.TestScript, _ bool, args []string) {
	gap, own := regexp.MustCompile(` {2,}`), []int{}
	var out strings.Builder
	for line := range strings.SplitSeq(strings.TrimSuffix(ts.ReadFile("stdout"), "\n"), "\n") {
		cells := gap.Split(strings.TrimSpace(line), -1)
		if heading.MatchString(line) {
			own = own[:0]
			for i, name := range cells {
				if slices.Contains([]string{"ID", "AGO"}, name) {
					own = append(own, i)
				}
			}
		} else if len(own) > 0 && own[len(own)-1] < len(cells) {
			for _, i := range own {
				cells[i] = "~"
			}
		}
		margin := line[:len(line)-len(strings.TrimLeft(line, " "))]
		out.WriteString(margin + strings.ReplaceAll(passing.ReplaceAllString(strings.Join(cells, "  "), "~"), ts.Getenv("WORK"), "~") + "\n")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(out.String()), 0o600))
}
