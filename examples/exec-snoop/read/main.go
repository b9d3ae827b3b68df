// Command read prints what the example exec-snoop reports, out of its pinned
// ring buffer.
//
// It owns the reading side of struct event in exec_snoop.bpf.c. It loads and
// attaches nothing: that is the agent's part.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// event is struct event of exec_snoop.bpf.c.
type event struct {
	PID, UID uint32
	Comm     [16]byte
	File     [128]byte
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: read PIN: prints the events of the ring buffer pinned at PIN")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := read(ctx, os.Args[1], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "read:", err)
		os.Exit(1)
	}
}

// read prints events until the context ends.
func read(ctx context.Context, pin string, out io.Writer) error {
	events, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return fmt.Errorf("open %s: %w", pin, err)
	}
	defer events.Close()
	reader, err := ringbuf.NewReader(events)
	if err != nil {
		return fmt.Errorf("read %s: %w", pin, err)
	}
	context.AfterFunc(ctx, func() { reader.Close() })
	for {
		record, err := reader.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", pin, err)
		}
		if err := show(out, record.RawSample); err != nil {
			return err
		}
	}
}

// show writes one event on a line.
func show(out io.Writer, sample []byte) error {
	var e event
	if err := binary.Read(bytes.NewReader(sample), binary.NativeEndian, &e); err != nil {
		return fmt.Errorf("decode event of %d bytes: %w", len(sample), err)
	}
	_, err := fmt.Fprintf(out, "%-8d %-6d %-16s %q\n", e.PID, e.UID, text(e.Comm[:]), text(e.File[:]))
	return err
}

// text is a C string.
func text(b []byte) []byte {
	s, _, _ := bytes.Cut(b, []byte{0})
	return s
}
